/* Stores and loads that may fail: the signal that they get, or 0. */
#include "check.h"

static sigjmp_buf back;

static void on_fault(int signal, siginfo_t *info, void *context) {
    siglongjmp(back, signal);
}

static inline int store(volatile char *at, char value) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) *at = value;
    return signal;
}

static inline int load(volatile char *at) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) (void)*at;
    return signal;
}
