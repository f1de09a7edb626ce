from .checks import CHECKS as CHECKS
from .diagnosing import Diagnosis as Diagnosis
from .diagnosing import Finding as Finding
from .diagnosing import RunDiagnosis as RunDiagnosis
from .diagnosing import Watch as Watch
from .diagnosing import diagnose as diagnose
