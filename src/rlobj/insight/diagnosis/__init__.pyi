from .checks import CHECKS as CHECKS
from .diagnosing import diagnose as diagnose
from .findings import Diagnosis as Diagnosis
from .findings import Finding as Finding
from .findings import RunDiagnosis as RunDiagnosis
from .watching import Watch as Watch
