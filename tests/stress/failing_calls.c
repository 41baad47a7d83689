/* Fails one system call of a process: the n-th of a kind on a path below a folder, with a given error.

   cc -shared -fPIC -o failing_calls.so failing_calls.c -ldl; preloaded, and armed by arm() through ctypes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char below[4096], kind[32];
static int countdown, error_number, counted;

void arm(const char *folder, const char *call, int nth, int number) {
    snprintf(below, sizeof below, "%s", folder);
    snprintf(kind, sizeof kind, "%s", call);
    countdown = nth;
    error_number = number;
    counted = 0;
}

int calls(void) { return counted; }

static int fails_path(const char *call, const char *path) {
    if (!below[0] || !path || strcmp(call, kind) || strncmp(path, below, strlen(below))) return 0;
    counted++;
    if (--countdown) return 0;
    errno = error_number;
    return 1;
}

static int fails_fd(const char *call, int fd) {
    char link[64], path[4096];
    if (!below[0] || strcmp(call, kind)) return 0;
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
