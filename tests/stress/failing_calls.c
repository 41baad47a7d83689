/* Fails one system call of a process: the n-th of a kind, with a given error. Of files those calls count that are of
   the empty device or of a path below a folder; of pipes and processes all.

   cc -shared -fPIC -o failing_calls.so failing_calls.c -ldl; preloaded, and armed by arm() through ctypes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char below[4096], kind[32];
static int countdown, error_number;
static struct { const char *call; int count; } seen[32];  // by kind, every call that could have been failed

void arm(const char *folder, const char *call, int nth, int number) {
    snprintf(below, sizeof below, "%s", folder);
    snprintf(kind, sizeof kind, "%s", call);
    countdown = nth;
    error_number = number;
    memset(seen, 0, sizeof seen);
}

int calls(const char *call) {
    for (int n = 0; n < 32 && seen[n].call; n++)
        if (!strcmp(seen[n].call, call)) return seen[n].count;
    return 0;
}

static void count(const char *call) {
    int n = 0;
    while (n < 31 && seen[n].call && strcmp(seen[n].call, call)) n++;
    seen[n].call = call;
    seen[n].count++;
}

static int fails(const char *call) {
    if (!below[0]) return 0;
    count(call);
    if (strcmp(call, kind) || --countdown) return 0;
    errno = error_number;
    return 1;
}

static int fails_path(const char *call, const char *path) {
    if (!path || (strncmp(path, below, strlen(below)) && strcmp(path, "/dev/null"))) return 0;
    return fails(call);
}

static int fails_fd(const char *call, int fd) {
    char link[64], path[4096];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails_path(call, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        mode_t mode = va_arg(more, mode_t);                              \
        va_end(more);                                                    \
        return fails_path("open", path) ? -1 : NEXT(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int openat64(int at, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return fails_path("open", path) ? -1 : NEXT(openat64)(at, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return fails_path("open", path) ? -1 : NEXT(openat)(at, path, flags, mode);
}

int close(int fd) {  // the descriptor is free all the same
    int fails = fails_fd("close", fd), number = errno, done = NEXT(close)(fd);
    if (!fails) return done;
    errno = number;
    return -1;
}

struct dirent64 *readdir64(DIR *folder) { return fails_fd("readdir", dirfd(folder)) ? NULL : NEXT(readdir64)(folder); }
struct dirent *readdir(DIR *folder) { return fails_fd("readdir", dirfd(folder)) ? NULL : NEXT(readdir)(folder); }
int pipe(int ends[2]) { return fails("pipe") ? -1 : NEXT(pipe)(ends); }
int pipe2(int ends[2], int flags) { return fails("pipe") ? -1 : NEXT(pipe2)(ends, flags); }
pid_t fork(void) { return fails("fork") ? -1 : NEXT(fork)(); }
int flock(int fd, int operation) { return fails_fd("flock", fd) ? -1 : NEXT(flock)(fd, operation); }

#define ON_FD(type, name, call, declared, given) \
    type name(int fd, declared) { return fails_fd(call, fd) ? -1 : NEXT(name)(fd, given); }
#define AND ,
ON_FD(off_t, lseek, "lseek", off_t at AND int whence, at AND whence)
ON_FD(off64_t, lseek64, "lseek", off64_t at AND int whence, at AND whence)
ON_FD(int, fstat, "fstat", struct stat *facts, facts)
ON_FD(int, fstat64, "fstat", struct stat64 *facts, facts)

int fstatat64(int at, const char *path, struct stat64 *facts, int flags) {
    return (path[0] == '/' ? fails_path("stat", path) : fails_fd("stat", at)) ? -1 : NEXT(fstatat64)(at, path, facts, flags);
}
int fstatat(int at, const char *path, struct stat *facts, int flags) {
    return (path[0] == '/' ? fails_path("stat", path) : fails_fd("stat", at)) ? -1 : NEXT(fstatat)(at, path, facts, flags);
}

ssize_t read(int fd, void *data, size_t size) { return fails_fd("read", fd) ? -1 : NEXT(read)(fd, data, size); }
ssize_t write(int fd, const void *data, size_t size) { return fails_fd("write", fd) ? -1 : NEXT(write)(fd, data, size); }
int fsync(int fd) { return fails_fd("fsync", fd) ? -1 : NEXT(fsync)(fd); }
int rename(const char *from, const char *to) { return fails_path("rename", to) ? -1 : NEXT(rename)(from, to); }
int unlink(const char *path) { return fails_path("unlink", path) ? -1 : NEXT(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return fails_path("mkdir", path) ? -1 : NEXT(mkdir)(path, mode); }
DIR *opendir(const char *path) { return fails_path("opendir", path) ? NULL : NEXT(opendir)(path); }
int stat64(const char *path, struct stat64 *facts) { return fails_path("stat", path) ? -1 : NEXT(stat64)(path, facts); }
int lstat64(const char *path, struct stat64 *facts) { return fails_path("stat", path) ? -1 : NEXT(lstat64)(path, facts); }
int stat(const char *path, struct stat *facts) { return fails_path("stat", path) ? -1 : NEXT(stat)(path, facts); }
int lstat(const char *path, struct stat *facts) { return fails_path("stat", path) ? -1 : NEXT(lstat)(path, facts); }
