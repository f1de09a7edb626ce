"""What a run needs and what it may have: memory, hours, and the values of settings that are `auto`.

sizes              the numbers of a model and of the GPUs
memory             the memory of each GPU, by phase and part, and settings with which it fits
workload           tokens, hours and disk space
accelerate_launch  what `accelerate launch` asks for
choosing           what `auto` stands for, once, when a run begins
"""
