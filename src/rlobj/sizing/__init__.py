"""What a run needs and what it may have: memory, hours, and the values of settings that are `auto`.

sizes              the numbers of a model and of the GPUs
activations        a micro-batch: what autograd keeps, and the largest tensors of the passes
memory             the memory of each GPU, by phase and part
fitting            settings with which a run fits its GPUs
workload           tokens and hours
choosing           what `auto` stands for, once, when a run begins
"""
