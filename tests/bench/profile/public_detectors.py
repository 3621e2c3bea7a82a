"""Asks the detectors of PyPI's pyriodicity about the series that the bench has exported, and prints a Markdown table.

    PROFILE_EXPORT=series.csv PROFILE_PARTS=export cargo test -p profiles --test profile
    python public_detectors.py series.csv
"""

import csv
import sys
import time

import numpy
from pyriodicity import SAZED, Autoperiod, CFDAutoperiod


def first(answer):
    """The first period of an answer, or 0."""
    periods = numpy.atleast_1d([] if answer is None else answer)
    return float(periods[0]) if len(periods) else 0.0


DETECTORS = {
    "Autoperiod": lambda values: first(Autoperiod.detect(values, percentile=99, seed=1)),
    "CFDAutoperiod": lambda values: first(CFDAutoperiod.detect(values, percentile=99, seed=1)),
    "SAZED": lambda values: first(SAZED.detect(values)),
}


def near(answer, truth):
    return truth > 0 and abs(answer / truth - 1) <= 0.05


def main(path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = [(row[0], *map(float, row[1:4]), numpy.array(row[4:], dtype=float)) for row in csv.reader(file)]
    answers = {"this library": [(row[2], row[3]) for row in rows]}
    for name, detect in DETECTORS.items():
        answers[name] = []
        for row in rows:
            start = time.perf_counter()
            try:
                answer = detect(row[4])
            except (ValueError, ZeroDivisionError, IndexError, FloatingPointError):  # constant series
                answer = 0.0
            answers[name].append((answer, (time.perf_counter() - start) * 1e3))
    families = list(dict.fromkeys(row[0] for row in rows if row[1] == 0))
    print("| detector | false alarms, % | right / any answer, % | ms a series |\n|---|---|---|---|")
    for name, given in answers.items():
        alarms = []
        for family in families:
            of = [answer > 0 for row, (answer, _) in zip(rows, given) if row[0] == family]
            alarms.append(f"{family} {100 * sum(of) / len(of):.0f}")
        jobs = [(row[1], answer) for row, (answer, _) in zip(rows, given) if row[1] > 0]
        right = 100 * sum(near(answer, truth) for truth, answer in jobs) / len(jobs)
        any_answer = 100 * sum(answer > 0 for _, answer in jobs) / len(jobs)
        mean = sum(ms for _, ms in given) / len(given)
        print(f"| {name} | {', '.join(alarms)} | {right:.0f} / {any_answer:.0f} | {mean:.1f} |")


main(sys.argv[1])
