"""differs.py FILE EXPECTED: says where FILE, looked at twice, is not as EXPECTED, and fails if it is not."""

import sys

PAGE = 4096


def pages(path):
    with open(path, "rb") as file:
        held = file.read()
    return len(held), [held[at : at + PAGE] for at in range(0, len(held), PAGE)]


def ranges(wrong):
    """Neighbours together."""
    found = []
    for page in wrong:
        if found and found[-1][1] == page:
            found[-1][1] = page + 1
        else:
            found.append([page, page + 1])
    return found


def how(page):
    return "zeros" if not any(page) else repr(page[:40])


def look(path, expected):
    held_len, held = pages(path)
    expected_len, wanted = expected
    if held_len != expected_len:
        print(f"{path}: has {held_len} bytes instead of {expected_len}")
    both = range(min(len(held), len(wanted)))
    wrong = ranges(page for page in both if held[page] != wanted[page])
    for first, end in wrong[:20]:
        print(f"{path}: bytes {first * PAGE} to {end * PAGE}: {how(held[first])} instead of {how(wanted[first])}")
    if len(wrong) > 20:
        print(f"{path}: and {len(wrong) - 20} more ranges")
    return held_len != expected_len or bool(wrong)


expected = pages(sys.argv[2])
if look(sys.argv[1], expected):
    print("a second look:" if look(sys.argv[1], expected) else "a second look finds it right")
    sys.exit(1)
