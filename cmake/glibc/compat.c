/* Defines functions that glibc has only since 2.29 or later, so that a program also runs on glibc 2.28
 * (cmake/OctavoGlibc.cmake). They are hidden, so that no other library calls them.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* libstdc++ reads this variable of glibc 2.32: 1 means that references may be counted without atomic
 * operations. */
HIDDEN char __libc_single_threaded = 0;

/* Before 2.33 glibc has these functions only with one more argument, the version of the struct: 1 on x86-64,
 * 0 elsewhere. */
#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
struct stat;
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int file, struct stat* out);
int __fxstatat(int version, int folder, const char* path, struct stat* out, int flags);
HIDDEN int stat(const char* path, struct stat* out) { return __xstat(STAT_VERSION, path, out); }
HIDDEN int lstat(const char* path, struct stat* out) { return __lxstat(STAT_VERSION, path, out); }
HIDDEN int fstat(int file, struct stat* out) { return __fxstat(STAT_VERSION, file, out); }
HIDDEN int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(STAT_VERSION, folder, path, out, flags);
}
HIDDEN int stat64(const char* path, struct stat* out) { return stat(path, out); }
HIDDEN int lstat64(const char* path, struct stat* out) { return lstat(path, out); }
HIDDEN int fstat64(int file, struct stat* out) { return fstat(file, out); }

/* std::random_device calls this function of glibc 2.36. It has no way to report an error. */
HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) abort();
  return value;
}

/* std::condition_variable::wait_for calls this function of glibc 2.30. This one waits by the system's clock
 * instead of `clock`. If the system's clock is set meanwhile, the thread wakes too early, and its caller
 * waits again, or it wakes too late. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  struct timespec now, given;
  if (clock_gettime(clock, &given) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return EINVAL;
  int64_t nanoseconds = (int64_t)(until->tv_nsec - given.tv_nsec + now.tv_nsec);
  now.tv_sec += until->tv_sec - given.tv_sec + (time_t)(nanoseconds / 1000000000);
  nanoseconds %= 1000000000;
  if (nanoseconds < 0) {
    nanoseconds += 1000000000;
    --now.tv_sec;
  }
  now.tv_nsec = (long)nanoseconds;
  return pthread_cond_timedwait(condition, mutex, &now);
}

/* Since glibc 2.38 its headers rename the functions that read numbers. */
#define RENAMED(type, name)                                             \
  type plain_##name(const char*, char**, int) __asm__(#name);           \
  type __isoc23_##name(const char*, char**, int);                       \
  HIDDEN type __isoc23_##name(const char* text, char** end, int base) { \
    return plain_##name(text, end, base);                               \
  }
RENAMED(long, strtol)
RENAMED(long long, strtoll)
RENAMED(unsigned long, strtoul)
RENAMED(unsigned long long, strtoull)
