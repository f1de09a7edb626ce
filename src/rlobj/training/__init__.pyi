from .loop.callbacks import Callback as Callback
from .loop.inputs import CallerInputs as CallerInputs
from .loop.result import TrainingResult as TrainingResult
from .loop.running import run_training as run_training
from .run import resume as resume
from .run import train as train
