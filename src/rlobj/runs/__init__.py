"""The folder of a run: what lies in it, and who reads and writes it.

layout         the names of its files, and how the folder is named
configuration  its settings; metrics, sessions, checkpoints read the other files
run_folder     writes all of these
manifest       sizes and digests of the files of a checkpoint
samples        writes RUN/samples/: the responses of each step
recorder       writes RUN/records/: the tokens that a rule touched and a sample of the others
tables         writes and reads RUN/tables/: whole updates of some steps, to plan them again
columns        the columns of records/
reading        checks and reads the files of both
observed       what an update did to its tokens: what is recorded and measured
loss_metrics   the metrics of an update's loss; token_metrics and sampler_metrics have the others
"""
