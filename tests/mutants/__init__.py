"""A mutation campaign: faults are put into Gradlet's own source, one at a time, and verify must
see each one that changes what a model computes.

    make mutants                                    a hundred of them, from seed 0
    python -m tests.mutants --count 20 --seed 7     another draw

`sites.py` finds places and writes the faults, `models.py` lists models that reach them, `trial.py`
builds and verifies with one faulty copy of the source, `campaign.py` draws, runs and counts.
"""
