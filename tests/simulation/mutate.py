#!/usr/bin/env python3
"""Copies a source with one piece of text replaced: mutate.py SOURCE COPY GOOD WRONG.

Fails when the text is not there exactly once: the list of mutations has to follow the source.
"""
import sys


def main():
    source, copy, good, wrong = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    if text.count(good) != 1:
        sys.exit(f"error: {source} has the text {text.count(good)} times: {good}")
    with open(copy, "w", encoding="utf-8") as file:
        file.write(text.replace(good, wrong))


if __name__ == "__main__":
    main()
