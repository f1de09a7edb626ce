"""The folders of runs and of evaluations: what lies in them, and who reads and writes it.

layout              the names of the files, and how the folder of a run is named
configuration       its settings, its starts and its end; metrics, checkpoints read the other files
run_folder          writes all of these
evaluation_samples  writes and reads the problems, responses and grades of an evaluation
recorder            writes RUN/records/: the tokens that a rule touched and a sample of the others;
                    and RUN/samples/: the responses of each step
tables              writes and reads RUN/tables/: whole updates of some steps, to plan them again
columns             the columns of records/
reading             checks and reads the files of both
logs                reads what another trainer logged
observed            what an update did to its tokens: what is recorded and measured
loss_metrics        the metrics of an update's loss and sampler; token_metrics: of its tokens
"""
