/* Follows a process and all its threads and children, and stops each at the entry of every system
 * call that changes a file. The calls take place one after the other, whoever makes them, so that
 * between two of them the files hold still. Linux only (ptrace, and seccomp to stop at no other
 * calls than these). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096, GO_ON = 0, KILL_ALL = 1, KILL_FIRST = 2, LONGEST = 4096 };
static const long OPTIONS = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK
                            | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL
                            | PTRACE_O_TRACESECCOMP;

/* by: the number of the argument that has the file, a descriptor or a path. */
struct call {
    long number;
    int by;
    int is_descriptor;
    const char *name;
};
#define PATH(name, by) { SYS_##name, by, 0, #name }
#define DESCRIPTOR(name, by) { SYS_##name, by, 1, #name }
static const struct call CALLS[] = {
#ifdef SYS_open
    PATH(open, 0), PATH(creat, 0), PATH(rename, 1), PATH(unlink, 0), PATH(mkdir, 0),
    PATH(rmdir, 0), PATH(link, 1), PATH(symlink, 1), PATH(chmod, 0), PATH(chown, 0),
    PATH(mknod, 0),
#endif
#ifdef SYS_renameat
    PATH(renameat, 3),
#endif
    PATH(openat, 1), PATH(openat2, 1), PATH(renameat2, 3), PATH(unlinkat, 1), PATH(mkdirat, 1),
    PATH(linkat, 3), PATH(symlinkat, 2), PATH(truncate, 0), PATH(fchmodat, 1), PATH(fchownat, 1),
    PATH(mknodat, 1), PATH(utimensat, 1), DESCRIPTOR(write, 0), DESCRIPTOR(writev, 0),
    DESCRIPTOR(pwrite64, 0), DESCRIPTOR(pwritev, 0), DESCRIPTOR(pwritev2, 0),
    DESCRIPTOR(ftruncate, 0), DESCRIPTOR(fallocate, 0), DESCRIPTOR(fchmod, 0),
    DESCRIPTOR(fchown, 0), DESCRIPTOR(sendfile, 0), DESCRIPTOR(copy_file_range, 2),
};
enum { COUNT = sizeof CALLS / sizeof *CALLS };

static const struct call *found(uint64_t number)
{
    for (int i = 0; i < COUNT; ++i)
        if ((uint64_t)CALLS[i].number == number) return &CALLS[i];
    return 0;
}

/* The argument that has the flags of an open, or -1. */
static int flags_of(long number)
{
#ifdef SYS_open
    if (number == SYS_open) return 1;
#endif
    return number == SYS_openat ? 2 : -1;
}

static void text_at(pid_t thread, uint64_t address, char *text)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", thread);
    const int memory = open(name, O_RDONLY);
    const ssize_t size = memory < 0 ? 0 : pread(memory, text, LONGEST - 1, (off_t)address);
    text[size > 0 ? size : 0] = 0;
    if (memory >= 0) close(memory);
}

/* Whether the call changes a regular file or a folder, not a pipe, a terminal or a device; `path`
 * gets its name. */
static int changes_a_file(pid_t thread, const struct call *call, const uint64_t *args, char *path)
{
    if (!call->is_descriptor) {
        text_at(thread, args[call->by], path);
        return strncmp(path, "/dev/", 5) != 0;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", thread, (int)args[call->by]);
    const ssize_t size = readlink(link, path, LONGEST - 1);
    path[size > 0 ? size : 0] = 0;
    return path[0] == '/' && strncmp(path, "/dev/", 5) && strncmp(path, "/proc/", 6)
           && strncmp(path, "/memfd:", 7);
}

static void forget(pid_t *threads, int *count, pid_t gone)
{
    for (int i = 0; i < *count; ++i)
        if (threads[i] == gone) threads[i] = threads[--*count];
}

/* Whom a thread has started is followed from then on, and so waited for; one that starts another
 * program takes the number of its process. */
static void note_new(pid_t thread, int stopped, pid_t *threads, int *count)
{
    unsigned long number = 0;
    const int event = stopped >> 16;
    ptrace(PTRACE_GETEVENTMSG, thread, 0, &number);
    if (event == PTRACE_EVENT_EXEC && (pid_t)number != thread) forget(threads, count, (pid_t)number);
    if (event != PTRACE_EVENT_FORK && event != PTRACE_EVENT_VFORK && event != PTRACE_EVENT_CLONE) return;
    forget(threads, count, (pid_t)number);
    if (*count < MOST) threads[(*count)++] = (pid_t)number;
}

/* Let a thread do the call at which it stands, and nobody begin another one before it is done.
 * Returns what waitpid gave if the thread is gone, else 0. */
static int finish_call(pid_t thread)
{
    int stopped;
    ptrace(PTRACE_SYSCALL, thread, 0, 0);
    for (;;) {
        if (waitpid(thread, &stopped, __WALL) < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        if (WIFEXITED(stopped) || WIFSIGNALED(stopped)) return stopped | 1 << 30;
        if (WSTOPSIG(stopped) == (SIGTRAP | 0x80)) break;
        ptrace(PTRACE_SYSCALL, thread, 0, 0);
    }
    ptrace(PTRACE_CONT, thread, 0, 0);
    return 0;
}

/* Follow a child that has called wait_for_follower, until it and all that it started are gone.
 * `at` is told of every change before it is made, and says what is to become of the processes;
 * KILL_FIRST kills the child alone, as `kill -9 PID` does, and what it started goes on. Returns how
 * many changes were begun; *status is the child's. */
long follow(pid_t first, int (*at)(long, pid_t, const char *, const char *), int *status)
{
    pid_t threads[MOST];
    int count = 0, stopped;
    long changes = 0;
    if (waitpid(first, &stopped, __WALL) != first || !WIFSTOPPED(stopped)) return -1;
    if (ptrace(PTRACE_SETOPTIONS, first, 0, OPTIONS)) return -2;
    threads[count++] = first;
    ptrace(PTRACE_CONT, first, 0, 0);
    for (;;) {
        const pid_t thread = waitpid(-1, &stopped, __WALL);
        if (thread < 0) {
            if (errno == EINTR) continue;
            return changes;
        }
        if (WIFEXITED(stopped) || WIFSIGNALED(stopped)) {
            if (thread == first) *status = stopped;
            forget(threads, &count, thread);
            if (count == 0) return changes; /* other children are not waited for */
            continue;
        }
        note_new(thread, stopped, threads, &count);
        int known = 0, passed_on = 0;
        for (int i = 0; i < count; ++i) known |= threads[i] == thread;
        if (!known && count < MOST) threads[count++] = thread;
        if (stopped >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) {
            struct __ptrace_syscall_info info;
            char path[LONGEST];
            memset(&info, 0, sizeof info);
            ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
            const struct call *call = found(info.seccomp.nr);
            if (call && changes_a_file(thread, call, info.seccomp.args, path)) {
                const int verdict = at(++changes, thread, call->name, path);
                if (verdict == KILL_FIRST) kill(first, SIGKILL);
                for (int i = 0; verdict == KILL_ALL && i < count; ++i) kill(threads[i], SIGKILL);
                const int gone = verdict == GO_ON ? finish_call(thread) : 0;
                if (verdict != GO_ON) ptrace(PTRACE_CONT, thread, 0, 0);
                if (gone) {
                    if (thread == first) *status = gone & ~(1 << 30);
                    forget(threads, &count, thread);
                    if (count == 0) return changes;
                }
                continue;
            }
        } else if (stopped >> 16 == 0 && known) {
            const int signal = WSTOPSIG(stopped);
            passed_on = signal == SIGSTOP || signal == SIGTRAP ? 0 : signal;
        }
        ptrace(PTRACE_CONT, thread, 0, passed_on);
    }
}

/* Called by the child: from here on it is followed. Returns 0. */
int wait_for_follower(void)
{
    const uint32_t making = O_CREAT | O_TRUNC;
    struct sock_filter code[COUNT * 5 + 2];
    unsigned short size = 0;
    code[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; ++i) {
        const int flags = flags_of(CALLS[i].number);
        const uint32_t place = offsetof(struct seccomp_data, args) + 8 * (uint32_t)flags;
        code[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, 0,
                                                    flags < 0 ? 1 : 4);
        if (flags >= 0) {
            code[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place);
            code[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, making, 1, 0);
            code[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        code[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    code[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = { size, code };
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? 2 : 0;
}
