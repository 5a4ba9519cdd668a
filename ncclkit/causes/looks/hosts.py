"""Looks for a host.

They ask for memory, limits, /dev/shm, storage, clocks, cores, and who ended a process.
"""

from __future__ import annotations

from ncclkit.causes.looks.record import Look

LOOKS: tuple[Look, ...] = (
    Look(
        cause="host_oom",
        question=(
            "Did the memory of a host or container run out or its swap fill (`free`, the kernel's"
            " log, Slurm's OUT_OF_MEMORY, Kubernetes' OOMKilled)?"
        ),
        now=(
            "free -h; grep -s oom_kill /sys/fs/cgroup/memory.events; (dmesg -T; journalctl -kq"
            " --since=-1d) 2>/dev/null | grep -i -e out.of.memory | tail -n 3"
        ),
        shows=(
            r"(?i)kernel: .*out of memory: kill(?:ed)? process \d+ \((?:python|pt_|torchrun|ray)"
            r"|\boom_kill [1-9]"
        ),
        yes=(
            "`Out of memory: Killed process … (python)` at the time of the failure, oom_kill above"
            " 0, used memory that rises until the job stops, swap in use"
        ),
        no="memory stayed free on all hosts of the job to the end, and nothing was killed for it",
        next_time="free -m -s 30 > mem.$(hostname).txt &",
        minutes=2,
        also={"cpu_contention": 0.15, "rank_killed": 0.1},
    ),
    Look(
        cause="rank_killed",
        question=(
            "Was a rank ended from outside while it still made progress: time limit, preemption, a"
            " person, a closed terminal, a host taken away (not for memory)?"
        ),
        now=(
            "timeout 8 sacct -X -o JobID,JobName,State,ExitCode,Elapsed,Timelimit 2>/dev/null |"
            " tail -n 5; uptime -s"
        ),
        yes=(
            "sacct says TIMEOUT, PREEMPTED or CANCELLED at the second in which the steps stop; the"
            " pod was evicted; the terminal was closed; the host restarted"
        ),
        no="nobody ended it, or only after it had hung or failed",
        next_time="trap 'date; echo signal from outside' TERM HUP  # before the launch line",
        minutes=2,
        also={"host_oom": 0.12},
    ),
    Look(
        cause="fd_limit",
        question=(
            "Does it go away with a higher limit of open files or processes (`ulimit -n 65536`,"
            " `ulimit -u`), or with fewer workers?"
        ),
        now="grep -e open.files -e processes /proc/self/limits; cat /proc/sys/fs/file-nr",
        yes=(
            "the limit was 1024 or 4096 and a rank had about as many entries in /proc/PID/fd; with"
            " a higher one it runs"
        ),
        no="ranks use some hundred files of a limit of 65536 or more, or it fails as before",
        next_time="ulimit -n $(ulimit -Hn); ulimit -n -u",
        minutes=5,
        also={"cpu_contention": 0.3, "shm_too_small": 0.25, "host_oom": 0.25, "net_limit": 0.1},
    ),
    Look(
        cause="shm_too_small",
        question=(
            "Is /dev/shm small or full where the ranks run: does `df -h /dev/shm` in the container"
            " say 64M, or 100 %?"
        ),
        now="df -hP /dev/shm",
        shows=r"\s64M\s+\S+\s+\S+\s+\d+%\s+/dev/shm|\s0\s+100%\s+/dev/shm",
        yes="Size 64M (Docker's and Kubernetes' default) or Use 100%; with --shm-size=16g it runs",
        no="gigabytes are free there while the job starts and runs, or it runs in no container",
        next_time="(while sleep 10; do df -h /dev/shm; done) > shm.$(hostname).txt &",
        minutes=2,
        also={"cumem_container": 0.2, "host_oom": 0.1},
    ),
    Look(
        cause="memlock_limit",
        question=(
            "Does `ulimit -l`, run inside the job (not in a login shell) on a host with InfiniBand,"
            " RoCE or EFA, print a number instead of `unlimited`?"
        ),
        now="ulimit -l; ls /sys/class/infiniband 2>/dev/null",
        yes="64, 8192, 65536 or another number inside the job; the same container works elsewhere",
        no="`unlimited` in every rank, or the hosts have no such card",
        next_time="ulimit -l  # as the ranks see it: srun bash -c 'hostname; ulimit -l'",
        minutes=2,
        also={"ib_config": 0.1, "ib_not_used": 0.15},
    ),
    Look(
        cause="disk_or_io",
        question=(
            "Was a file system of the job full, over quota or stalled (`df -h`, `df -i`, `quota`, a"
            " process in state D), when it read data or wrote a checkpoint?"
        ),
        now=(
            "timeout 4 df -hP . ~ /tmp; timeout 4 df -iP . ~ /tmp; ps -eo state,pid,wchan:24,comm |"
            " grep ^D"
        ),
        shows=r"\s0\s+100%\s",
        yes=(
            "Use or IUse 100% at a path of the job, quota exceeded, `df` that does not return, or a"
            " rank in state D in a read, write or fsync for minutes"
        ),
        no="space is left on all paths, a big file is written and read there in seconds",
        next_time=(
            "(while sleep 30; do date; timeout 9 df -h . /tmp; ps -eo state,pid,wchan:24,comm |"
            " grep ^D; done) > disk.$(hostname).txt &"
        ),
        minutes=2,
        also={"slow_rank": 0.2, "host_oom": 0.15, "gil_hold": 0.15},
    ),
    Look(
        cause="clock_skew",
        question=(
            "Do the clocks of the job's hosts differ by seconds or more (`date` on all at once,"
            " `timedatectl`, `chronyc tracking`)?"
        ),
        now=(
            "date +%T.%N; (timedatectl; chronyc -n tracking) 2>/dev/null | grep -i -e sync -e"
            " system.time"
        ),
        yes="more than 1 s between two hosts, or `synchronized: no` on one whose time is off",
        no="all hosts within a second, or the job has one host only",
        next_time="date +%s.%N > clock.$(hostname).txt  # on all hosts at once, by srun or pdsh",
        minutes=2,
    ),
    Look(
        cause="cpu_contention",
        question=(
            "Are there more busy processes than cores: (num_workers + 1) × ranks of a host above"
            " `nproc` inside the job, or other jobs on the same cores?"
        ),
        now="nproc; cat /proc/loadavg; grep -s throttled /sys/fs/cgroup/cpu.stat",
        yes=(
            "workers and ranks above the number of cores, a load average far above it, nr_throttled"
            " that rises, the warning about `max number of worker`; half as many workers run"
        ),
        no="cores stay idle while the ranks wait, and fewer workers change nothing",
        next_time="nproc; vmstat 30 > cpu.$(hostname).txt &",
        minutes=2,
        also={
            "host_oom": 0.35,
            "fd_limit": 0.3,
            "cpu_binding": 0.3,
            "slow_rank": 0.15,
            "timeout_too_short": 0.1,
        },
    ),
    Look(
        cause="cpu_binding",
        question=(
            "Do ranks of a host run on one core only, or several on the same one, while others are"
            " idle (`taskset -cp PID` of each rank, `top`)?"
        ),
        now="nproc; taskset -cp $$; env | grep -e OMP_ -e SLURM_CPU; nvidia-smi topo -m",
        yes="`current affinity list: 0` for several ranks, or cores far from the rank's GPU",
        no="each rank may use many cores, among them those beside its GPU in `nvidia-smi topo -m`",
        next_time="(sleep 99; for p in $(pgrep python); do taskset -cp $p; done) > cores.txt &",
        minutes=2,
        also={"cpu_contention": 0.2},
    ),
    Look(
        cause="stale_lock",
        question=(
            "Does an old lock file lie in a cache while nothing compiles (`find"
            " ~/.cache/torch_extensions -name lock -mmin +30`; pgrep ninja, nvcc)?"
        ),
        now=(
            "timeout 8 find ~/.cache/torch_extensions $TORCH_EXTENSIONS_DIR -name lock -mmin +30"
            " 2>/dev/null; pgrep -l ninja; pgrep -l nvcc"
        ),
        shows=r"torch_extensions/\S+/lock(?![\s\S]*(?:ninja|nvcc))",
        yes=(
            "a file `lock` from the time of a run that was killed; a stack ends in file_baton.py;"
            " the next start hangs in the same place"
        ),
        no="no lock file, or the compiler runs and it goes on after some minutes",
        next_time="find ~/.cache/torch_extensions -name lock -mmin +30  # before the launch line",
        minutes=2,
        also={"disk_or_io": 0.1},
    ),
)
