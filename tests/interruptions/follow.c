/* Follows a process and all its threads and children, counts their system calls that change files,
 * and kills all of them with SIGKILL at the entry of a chosen one. Linux only (ptrace). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };
static const long OPTIONS = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK
                            | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;

/* A regular file or folder, not a pipe, a terminal or a device. */
static int is_file(pid_t thread, uint64_t descriptor)
{
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", thread, (int)descriptor);
    const ssize_t size = readlink(link, target, sizeof target - 1);
    if (size <= 0) return 0;
    target[size] = 0;
    return target[0] == '/' && strncmp(target, "/dev/", 5) && strncmp(target, "/proc/", 6)
           && strncmp(target, "/memfd:", 7);
}

static int changes_a_file(pid_t thread, uint64_t number, const uint64_t *args)
{
    const uint64_t making = O_CREAT | O_TRUNC;
    switch (number) {
#ifdef SYS_open
    case SYS_open: return (args[1] & making) != 0;
    case SYS_creat:
    case SYS_rename:
    case SYS_unlink:
    case SYS_mkdir:
    case SYS_rmdir:
    case SYS_link:
    case SYS_symlink:
    case SYS_chmod:
    case SYS_chown:
    case SYS_mknod: return 1;
#endif
    case SYS_openat: return (args[2] & making) != 0;
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
    case SYS_unlinkat:
    case SYS_mkdirat:
    case SYS_linkat:
    case SYS_symlinkat:
    case SYS_truncate:
    case SYS_fchmodat:
    case SYS_fchownat:
    case SYS_mknodat:
    case SYS_utimensat: return 1;
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_fchmod:
    case SYS_fchown:
    case SYS_sendfile: return is_file(thread, args[0]);
    case SYS_copy_file_range: return is_file(thread, args[2]);
    default: return 0;
    }
}

static void forget(pid_t *threads, int *count, pid_t gone)
{
    for (int i = 0; i < *count; ++i)
        if (threads[i] == gone) threads[i] = threads[--*count];
}

/* Follow a child that has called wait_for_follower, until it and all that it started are gone.
 * Returns how many changes were begun; *status is the child's. kill_at 0 kills nobody; only_first
 * kills the child alone, as `kill -9 PID` does, and what it started goes on. */
long follow(pid_t first, long kill_at, int only_first, int *status)
{
    pid_t threads[MOST];
    int count = 0, stopped;
    long changes = 0;
    if (waitpid(first, &stopped, __WALL) != first || !WIFSTOPPED(stopped)) return -1;
    if (ptrace(PTRACE_SETOPTIONS, first, 0, OPTIONS)) return -2;
    threads[count++] = first;
    ptrace(PTRACE_SYSCALL, first, 0, 0);
    for (;;) {
        const pid_t thread = waitpid(-1, &stopped, __WALL);
        if (thread < 0) {
            if (errno == EINTR) continue;
            return changes;
        }
        if (WIFEXITED(stopped) || WIFSIGNALED(stopped)) {
            if (thread == first) *status = stopped;
            forget(threads, &count, thread);
            continue;
        }
        int known = 0, passed_on = 0;
        for (int i = 0; i < count; ++i) known |= threads[i] == thread;
        if (!known && count < MOST) threads[count++] = thread;
        const int signal = WSTOPSIG(stopped);
        if (signal == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            memset(&info, 0, sizeof info);
            ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY
                && changes_a_file(thread, info.entry.nr, info.entry.args) && ++changes == kill_at) {
                if (only_first)
                    kill(first, SIGKILL);
                else
                    for (int i = 0; i < count; ++i) kill(threads[i], SIGKILL);
            }
        } else if (stopped >> 16 == 0 && known) {
            passed_on = signal == SIGSTOP || signal == SIGTRAP ? 0 : signal;
        }
        ptrace(PTRACE_SYSCALL, thread, 0, passed_on);
    }
}

/* Called by the child. */
void wait_for_follower(void)
{
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
}
