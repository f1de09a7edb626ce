from rlobj.training.loop.callbacks import Callback as Callback
from rlobj.training.loop.inputs import CallerInputs as CallerInputs
from rlobj.training.loop.result import TrainingResult as TrainingResult
from rlobj.training.loop.running import run_training as run_training
from rlobj.training.run import resume as resume
from rlobj.training.run import train as train
