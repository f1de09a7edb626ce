"""The settings of a run: presets, layers of settings, and the RunConfig that they make.

presets             a published objective as a YAML file: a partial RunConfig
layers              what a preset, a file and single settings say, and in which order they count
profiles            what fits a run to the embedded policy
run_config          RunConfig, every setting with its default
sampling, training  two of its sections
building            how layers become one RunConfig
schema              the JSON schema of presets, and the meaning of each setting
meaning             which setting an unknown name means
scores              the section `scores:`
trust               code that a run folder names is imported only when a person agrees
resuming            what may change when a run is resumed
starting            what is checked when a run is about to start
"""
