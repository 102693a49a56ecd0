"""Small files can be read after they are written; malformed ones are refused with their names."""

from pathlib import Path
from uuid import UUID

import pytest

from headrace.errors import KafkaError
from headrace.storage.dirs.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from headrace.storage.dirs.partition_metadata import read_topic_id, write_topic_id
from headrace.storage.files.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from headrace.storage.log.leader_epochs import EpochEntry, LeaderEpochs, read_entries
from headrace.storage.log.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerEntry,
    read_snapshot,
    remove_stray_snapshots,
    snapshots,
    write_snapshot,
)
from headrace.types import TopicPartition
from headrace.wire.ids import id_to_text, new_id, text_to_id

TOPIC_ID = UUID("4f1c8f0e-6a1e-4c3b-9d54-0123456789ab")


class TestOffsetCheckpoint:
    def test_offsets_are_written_as_kafka_writes_them(self, tmp_path: Path) -> None:
        path = tmp_path / "recovery-point-offset-checkpoint"
        offsets = {TopicPartition("a-b", 3): 17, TopicPartition("__consumer_offsets", 0): 0}
        OffsetCheckpoint(path).write(offsets)
        assert path.read_text() == "0\n2\na-b 3 17\n__consumer_offsets 0 0\n"
        assert OffsetCheckpoint(path).read() == offsets

    def test_a_missing_or_empty_file_has_no_offsets(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        assert OffsetCheckpoint(path).read() == {}
        path.touch()
        assert OffsetCheckpoint(path).read() == {}

    def test_the_same_offsets_are_not_written_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        checkpoint = OffsetCheckpoint(path)
        checkpoint.write({TopicPartition("t", 0): 1})
        path.unlink()
        checkpoint.write({TopicPartition("t", 0): 1})
        assert not path.exists()
        checkpoint.write({TopicPartition("t", 0): 2})
        assert path.exists()

    def test_a_malformed_file_is_refused_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for content in (b"1\n0\n", b"x", b"0\n1\n", b"0\n0\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt zero 1\n", b"\xff\xfe"):
            path.write_bytes(content)
            with pytest.raises(CorruptCheckpointError, match=str(path)):
                pytest.fail(f"{content!r}: {OffsetCheckpoint(path).read()}")


class TestMetaProperties:
    def test_a_written_file_can_be_read(self, tmp_path: Path) -> None:
        assert read_meta_properties(tmp_path) is None
        for version in (0, 1):
            properties = MetaProperties(version=version, cluster_id="abc", broker_id=5, directory_id=TOPIC_ID)
            write_meta_properties(tmp_path, properties)
            assert read_meta_properties(tmp_path) == properties

    def test_kafkas_files_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "meta.properties"
        path.write_text(
            "#\n#Sat Nov 21 13:36:33 UTC 2026\nnode.id=0\ndirectory.id=4HnGDNe89a1GMUlePiHjWw\nversion=1\n"
            "cluster.id=5L6g3nShT-eMCtK--X86sw\n"
        )
        assert read_meta_properties(tmp_path) == MetaProperties(
            version=1,
            cluster_id="5L6g3nShT-eMCtK--X86sw",
            broker_id=0,
            directory_id=text_to_id("4HnGDNe89a1GMUlePiHjWw"),
        )
        path.write_text("broker.id=3\nversion=0\ncluster.id=xyz\n")
        assert read_meta_properties(tmp_path) == MetaProperties(
            version=0, cluster_id="xyz", broker_id=3, directory_id=None
        )

    def test_a_malformed_file_is_refused_by_name(self, tmp_path: Path) -> None:
        for content in ("version=7\n", "version=one\n", "version=1\nnode.id=x\n"):
            (tmp_path / "meta.properties").write_text(content)
            with pytest.raises(KafkaError, match=r"meta.properties is malformed"):
                pytest.fail(f"{content!r}: {read_meta_properties(tmp_path)}")

    def test_ids_have_22_characters(self) -> None:
        for _ in range(100):
            identity = new_id()
            text = id_to_text(identity)
            assert len(text) == 22
            assert text[0] != "-"
            assert text_to_id(text) == identity


class TestPartitionMetadata:
    def test_a_written_topic_id_can_be_read(self, tmp_path: Path) -> None:
        assert read_topic_id(tmp_path) is None
        (tmp_path / "partition.metadata").touch()
        assert read_topic_id(tmp_path) is None
        write_topic_id(tmp_path, TOPIC_ID)
        assert (tmp_path / "partition.metadata").read_text() == f"version: 0\ntopic_id: {id_to_text(TOPIC_ID)}"
        assert read_topic_id(tmp_path) == TOPIC_ID

    def test_a_malformed_file_is_refused_by_name(self, tmp_path: Path) -> None:
        for content in ("version: 1\ntopic_id: x", "version: 0", "version: 0\ntopic_id: ?"):
            (tmp_path / "partition.metadata").write_text(content)
            with pytest.raises(KafkaError, match=r"partition.metadata is malformed"):
                pytest.fail(f"{content!r}: {read_topic_id(tmp_path)}")


class End:
    log_end_offset = 100


class TestLeaderEpochs:
    def epochs(self, directory: Path, *entries: tuple[int, int]) -> LeaderEpochs:
        epochs = LeaderEpochs(directory / "leader-epoch-checkpoint", [], End())
        for epoch, start in entries:
            epochs.assign(epoch, start)
        return epochs

    def test_an_epoch_ends_where_the_next_begins(self, tmp_path: Path) -> None:
        epochs = self.epochs(tmp_path, (2, 10), (4, 30), (5, 50))
        assert epochs.latest == 5
        assert [epochs.end_offset_for(epoch) for epoch in (-1, 0, 2, 3, 4, 5, 6)] == [
            (-1, -1),
            (0, 10),
            (2, 30),
            (2, 30),
            (4, 50),
            (5, 100),
            (-1, -1),
        ]
        assert [epochs.epoch_for(offset) for offset in (0, 10, 29, 30, 99)] == [-1, 2, 2, 4, 5]

    def test_without_epochs_lookups_return_undefined(self, tmp_path: Path) -> None:
        epochs = self.epochs(tmp_path)
        assert (epochs.latest, epochs.end_offset_for(0), epochs.epoch_for(5)) == (-1, (-1, -1), -1)

    def test_an_epoch_keeps_its_first_offset_and_removes_contradictory_entries(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        epochs = self.epochs(tmp_path, (1, 0), (1, 10), (2, 20), (3, 40), (4, 20))
        assert epochs.entries == (EpochEntry(1, 0), EpochEntry(4, 20))
        assert "contradict it: epoch 2 at offset 20, epoch 3 at offset 40" in caplog.text

    def test_entries_and_truncations_at_either_end_are_written_to_the_file(self, tmp_path: Path) -> None:
        epochs = self.epochs(tmp_path, (1, 0), (2, 20), (3, 40), (4, 60))
        assert epochs.path.read_text() == "0\n4\n1 0\n2 20\n3 40\n4 60\n"
        epochs.truncate_from_end(60)
        epochs.truncate_from_start(30)
        assert epochs.entries == (EpochEntry(2, 30), EpochEntry(3, 40))
        epochs.sync()
        assert read_entries(epochs.path) == [EpochEntry(2, 30), EpochEntry(3, 40)]
        epochs.clear()
        assert read_entries(epochs.path) == []


ENTRY = ProducerEntry(4000, 3, 17, 250, 9, 1_700_000_000_000, -1, -1)


class TestProducerSnapshot:
    def test_a_written_file_can_be_read(self, tmp_path: Path) -> None:
        path = write_snapshot(tmp_path, 300, [ENTRY.packed(), ENTRY.packed()])
        assert path.name == "00000000000000000300.snapshot"
        assert list(read_snapshot(path)) == [ENTRY, ENTRY]
        assert snapshots(tmp_path) == {300: path}

    def test_a_flipped_bit_is_detected(self, tmp_path: Path) -> None:
        path = write_snapshot(tmp_path, 300, [ENTRY.packed()])
        content = path.read_bytes()
        for position in range(len(content)):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            with pytest.raises(CorruptSnapshotError):
                read_snapshot(path)
        path.write_bytes(content[:5])
        with pytest.raises(CorruptSnapshotError, match="has only 5 bytes"):
            read_snapshot(path)

    def test_stray_snapshots_are_removed(self, tmp_path: Path) -> None:
        for offset in (0, 5, 10, 15, 20, 25):
            write_snapshot(tmp_path, offset, [])
        remove_stray_snapshots(tmp_path, [0, 10], 21)
        assert list(snapshots(tmp_path)) == [0, 10, 20]
        remove_stray_snapshots(tmp_path, [10], 21)
        assert list(snapshots(tmp_path)) == [10, 20]
