from headrace.storage.dirs.disk_space import DiskSpace, Marks, Room

MIB = 1024 * 1024
GIB = 1024 * MIB
OFF = Marks(0, 0, 0, 0)


def test_automatic_marks_leave_most_of_a_small_file_system_to_data() -> None:
    marks = {
        1000 * GIB: (GIB, 256 * MIB),
        10 * GIB: (GIB, 256 * MIB),
        20 * MIB: (2 * MIB, MIB),
        0: (0, 0),
    }
    assert {total: (Marks().soft(total), Marks().hard(total)) for total in marks} == marks


def test_the_larger_of_bytes_and_percent_applies() -> None:
    marks = Marks(soft_bytes=100, soft_percent=20, hard_bytes=50, hard_percent=1)
    assert (marks.soft(1000), marks.hard(1000)) == (200, 50)
    assert (marks.soft(100), marks.hard(10_000)) == (100, 100)


def test_the_soft_mark_is_never_below_the_hard_one() -> None:
    assert Marks(soft_bytes=0, hard_bytes=500).soft(1000) == 500


def test_a_disk_that_fills_up_and_empties_passes_both_marks() -> None:
    space, marks = DiskSpace(), Marks(soft_bytes=200, hard_bytes=100)
    seen = []
    for free in (500, 200, 199, 100, 99, 105, 109, 110, 199, 210, 219, 220, 50, 400):
        before = space.observe(1000, free, marks)
        if before is not space.room:
            seen.append((free, before, space.room))
    assert seen == [
        (199, Room.PLENTY, Room.LOW),
        (99, Room.LOW, Room.NONE),
        (110, Room.NONE, Room.LOW),
        (220, Room.LOW, Room.PLENTY),
        (50, Room.PLENTY, Room.NONE),
        (400, Room.NONE, Room.PLENTY),
    ]


def test_marks_may_change_while_the_broker_runs_and_those_of_zero_are_never_reached() -> None:
    space = DiskSpace()
    seen = []
    for free, marks in ((150, Marks(200, 0, 100, 0)), (150, Marks(300, 0, 250, 0)), (150, OFF), (0, OFF)):
        space.observe(1000, free, marks)
        seen.append(space.room)
    assert seen == [Room.LOW, Room.NONE, Room.PLENTY, Room.PLENTY]
