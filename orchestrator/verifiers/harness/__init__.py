"""What runs in the sandbox when an answer's code is tested: two programs, each in a sandbox of its own.

`answer_side` runs the answer's code, `tests_side` the client's tests. They share nothing but a pipe each way,
on which calls go to the answer and plain data comes back, so the answer cannot reach the tests, what they
expect, or what tells the verdict. These files use the standard library alone, and
little of it at their start, since each check waits for that.
"""
