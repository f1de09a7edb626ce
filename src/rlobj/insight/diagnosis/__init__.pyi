from rlobj.insight.diagnosis.checks import CHECKS as CHECKS
from rlobj.insight.diagnosis.details import agreed as agreed
from rlobj.insight.diagnosis.diagnosing import diagnose as diagnose
from rlobj.insight.diagnosis.findings import Diagnosis as Diagnosis
from rlobj.insight.diagnosis.findings import Finding as Finding
from rlobj.insight.diagnosis.findings import RunDiagnosis as RunDiagnosis
from rlobj.insight.diagnosis.watching import Watch as Watch
