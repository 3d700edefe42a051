"""The kernel's messages: which are of a kind, whatever else is written there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.catalog.node import KERNEL_EVENT_KINDS
from tachograph.node.xid.kernel_signatures import SIGNATURES, kind_of
from tachograph.node.xid.kmsg import kernel_record
from tachograph.signatures.table import classify
from tests.every import every

TEXTS = [
    ("oom_kill", "Out of memory: Killed process 4242 (python3) total-vm:90000000kB, anon-rss:80000000kB, UID:1000"),
    ("oom_kill", "Memory cgroup out of memory: Killed process 4242 (pt_data_worker) total-vm:9kB, anon-rss:8kB"),
    ("oom_kill", "Out of memory (oom_kill_allocating_task): Killed process 1 (a) total-vm:1kB"),
    ("oom_kill", "Out of memory: Kill process 4242 (python3) score 900 or sacrifice child"),
    ("oom_kill", "Memory cgroup out of memory: Kill process 4242 (python3) score 1000 or sacrifice child"),
    ("", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ("", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=python,pid=31337,uid=1000"),
    ("segfault", "python3[4242]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.27.3[7f00+a000]"),
    ("segfault", r"a\x0ab c[7]: segfault at 10 ip 0000000000000010 sp 00007ffd error 14"),
    ("segfault", "traps: python3[4242] general protection fault ip:7f1 sp:7ff error:0 in libc.so.6[7f+1]"),
    ("segfault", "traps: python3[4242] trap divide error ip:7f1 sp:7ff error:0 in x.so[7f+1]"),
    ("hung_task", "INFO: task python:136986 blocked for more than 120 seconds."),
    ("hung_task", "INFO: task kworker/u8:2:136986 blocked for more than 241 seconds."),
    ("hung_task", "INFO: task python:136986 blocked in I/O wait for more than 120 seconds."),
    ("lockup", "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python3:4242]"),
    ("lockup", "NMI watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:77]"),
    ("lockup", "watchdog: Watchdog detected hard LOCKUP on cpu 7"),
    ("lockup", "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"),
    ("lockup", "rcu: INFO: rcu_preempt self-detected stall on CPU"),
    ("nfs", "nfs: server fs01 not responding, still trying"),
    ("nfs", "nfs: server 10.0.0.7 not responding, timed out"),
    ("", "nfs: server fs01 OK"),
    ("lustre", "Lustre: lfs-OST0001-osc-ffff8: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress"),
    (
        "lustre",
        "LustreError: 167-0: lfs-OST0001-osc-ffff8: This client was evicted by lfs-OST0001; in progress",
    ),
    ("", "Lustre: lfs-OST0001-osc-ffff8: Connection restored to lfs-OST0001 (at 10.0.0.1@o2ib)"),
    ("filesystem", "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm python3: reading directory"),
    ("filesystem", "EXT4-fs (nvme0n1p1): Remounting filesystem read-only"),
    ("", "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Opts: (null)"),
    (
        "filesystem",
        "XFS (sdb1): Metadata corruption detected at xfs_agf_read_verify+0xca/0xf0 [xfs], xfs_agf block 0x1",
    ),
    ("filesystem", 'XFS (dm-0): metadata I/O error in "xfs_trans_read_buf_map" at daddr 0x3 len 8 error 5'),
    ("filesystem", "XFS (dm-0): Corruption of in-memory data (0x8) detected at x (y.c:1).  Shutting down filesystem."),
    ("", "XFS (sdb1): Mounting V5 Filesystem"),
    ("", "XFS (sdb1): Ending clean mount"),
    ("disk", "I/O error, dev nvme1n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2"),
    ("disk", "blk_update_request: I/O error, dev sda, sector 12345"),
    ("disk", "blk_update_request: critical medium error, dev sda, sector 12345 op 0x0:(READ)"),
    ("disk", "Buffer I/O error on dev dm-1, logical block 1, lost async page write"),
    ("disk", "nvme nvme0: I/O 832 QID 4 timeout, aborting"),
    ("disk", "nvme nvme0: I/O tag 832 (1340) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting req_op:READ(0) size:4096"),
    ("disk", "nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"),
    ("memory_failure", "Memory failure: 0x1a2b3c: Sending SIGBUS to python:4242 due to hardware memory corruption"),
    ("", "Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Recovered"),
    ("gpu_init", "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x24:0x72:1568)"),
    ("gpu_init", "NVRM: RmInitAdapter failed! (0x26:0xffff:1227)"),
    ("gpu_init", "NVRM: GPU 0000:b3:00.0: rm_init_adapter failed, device minor number 3"),
    ("", "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01"),
    ("nvswitch", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"),
    ("nvswitch", "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    ("", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00"),
    ("mlx5", "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
    ("mlx5", "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged"),
    ("mlx5", "mlx5_core 0000:03:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count"),
    ("mlx5", "mlx5_core 0000:03:00.0: wait_func:1153:(pid 1967): CREATE_MKEY(0x200) timeout. Will cause a leak of a"),
    ("mlx5", "mlx5_core 0000:03:00.0 eth0: TX timeout detected"),
    ("mlx5", "mlx5_core 0000:03:00.0 ib0: Link down"),
    ("", "mlx5_core 0000:03:00.0 ib0: Link up"),
    ("", "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838: ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource"),
    ("filesystem", "BTRFS error (device nvme0n1): bdev /dev/nvme0n1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0"),
    ("filesystem", "BTRFS: error (device sda2) in btrfs_finish_ordered_io:3141: errno=-5 IO failure"),
    ("filesystem", "BTRFS: error (device dm-0: state EA) in cleanup_transaction:2002: errno=-5 IO failure"),
    ("filesystem", "BTRFS info (device sda2: state E): forced readonly"),
    ("filesystem", "BTRFS critical (device sda2): corrupt leaf: root=2 block=1 slot=3, unexpected item end"),
    ("filesystem", "BTRFS warning (device sda1): csum failed root 5 ino 257 off 0 csum 0x1 expected csum 0x2 mirror 1"),
    ("", "BTRFS info (device sda1): using free space tree"),
    ("", "BTRFS info (device sda1): bdev /dev/sda1 errs: wr 0, rd 0, flush 0, corrupt 0, gen 1"),
    ("", "BTRFS warning (device sda1): block group 0 has wrong amount of free space"),
    ("filesystem", "Aborting journal on device dm-0-8."),
    (
        "memory_failure",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12)",
    ),
    ("memory_failure", "EDAC MC1: 2 UE Memory scrubbing error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)"),
    ("", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12)"),
    (
        "",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:64:0a.0",
    ),
    ("memory_failure", "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400"),
    ("", "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090"),
    ("", "mce: [Hardware Error]: Machine check events logged"),
    ("memory_failure", "mce: Uncorrected hardware memory error in user-access at 1a2b3c000"),
    ("segfault", "traps: python3[42] trap stack segment ip:7f1 sp:7ff error:0 in x.so[7f+1]"),
    ("segfault", "traps: python3[42] trap int3 ip:7f1 sp:7ff error:0 in x.so[7f+1]"),
    ("segfault", "traps: python3[42] trap bounds ip:7f1 sp:7ff error:0"),
    (
        "segfault",
        "python3[42]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault",
    ),
    ("disk", "nvme nvme0: Removing after probe failure status: -19"),
    ("disk", "nvme nvme0: Device not ready; aborting reset, CSTS=0x1"),
    ("disk", "md/raid1:md0: Disk failure on sda1, disabling device."),
    ("disk", "md/raid:md127: Disk failure on nvme1n1, disabling device."),
    ("disk", "md/raid0:md0: Disk failure on nvme0n1 detected, failing array."),
    ("disk", "protection error, dev nvme0n1, sector 5 op 0x0:(READ)"),
    ("disk", "timeout error, dev nvme0n1, sector 5 op 0x0:(READ)"),
    ("", "md/raid1:md0: active with 2 out of 2 mirrors"),
    ("", "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"),
]


@every("kind,text", TEXTS)
def test_every_spelling_of_a_kind(kind: str, text: str) -> None:
    """What the kernel of several versions writes is of its kind; what is routine is of none."""
    assert kind_of(text) == kind
    assert kind_of("  ".join(text.split(" "))) == kind_of("\\x09".join(text.split(" "))) == kind


def test_every_kind_has_one_row_and_a_spelling() -> None:
    """The table has the kinds of the catalog, in their order, each with its words, and each is tried here."""
    assert tuple(row.kind for row in SIGNATURES) == KERNEL_EVENT_KINDS
    assert {kind for kind, _ in TEXTS} == {"", *KERNEL_EVENT_KINDS}
    assert len(KERNEL_EVENT_KINDS) <= 12


@every("kind,text", [(kind, text) for kind, text in TEXTS if kind])
def test_the_table_of_logs_explains_the_same_messages(kind: str, text: str) -> None:
    """`tachograph logs` finds each in a log of the kernel, and its row says what the kind means."""
    found = classify(text)
    assert found is not None
    assert found.name in next(row.rows for row in SIGNATURES if row.kind == kind)


@pytest.mark.parametrize("kind", KERNEL_EVENT_KINDS)
def test_a_name_of_a_process_makes_no_event(kind: str) -> None:
    """A process may call itself whatever it likes: a message that merely holds another is of its own kind."""
    text = next(text for each, text in TEXTS if each == kind)
    assert not kind_of(f"audit: comm={text}")
    name = text[:15]
    assert kind_of(f"{name}[7]: segfault at 0 ip 0 sp 0 error 4") == "segfault"
    assert kind_of(f"INFO: task {name}:7 blocked for more than 120 seconds.") == "hung_task"
    assert kind_of(f"Out of memory: Killed process 7 ({name}) total-vm:1kB") == "oom_kill"


@given(st.text(max_size=400) | st.sampled_from([text for _, text in TEXTS]).map(lambda text: text[:30] + text * 20))
@settings(deadline=None)
def test_any_text_has_a_kind_or_none(text: str) -> None:
    """Whatever stands in the log, looking at it raises nothing."""
    assert kind_of(text) in {"", *KERNEL_EVENT_KINDS}


def test_what_a_program_writes_is_no_message_of_the_kernel() -> None:
    """A record with a facility was written by a program, which could claim anything."""
    assert kernel_record(b"12,1,5,-;nfs: server fs01 not responding, still trying") is None
