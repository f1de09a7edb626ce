from rlobj.insight.diagnosis.checks import CHECKS as CHECKS
from rlobj.insight.diagnosis.diagnosing import Diagnosis as Diagnosis
from rlobj.insight.diagnosis.diagnosing import Finding as Finding
from rlobj.insight.diagnosis.diagnosing import RunDiagnosis as RunDiagnosis
from rlobj.insight.diagnosis.diagnosing import Watch as Watch
from rlobj.insight.diagnosis.diagnosing import agreed as agreed
from rlobj.insight.diagnosis.diagnosing import diagnose as diagnose
