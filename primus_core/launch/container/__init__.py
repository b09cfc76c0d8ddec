"""The ``container`` launcher: primus once more inside docker, podman, apptainer or bubblewrap.

The working folder and the run's folder have the same paths inside as outside, and so have all relative paths.
Variables are passed by name: no value of a secret stands on a command line.
"""
