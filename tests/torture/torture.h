// What the workers of tortures share: how they complain, and chance that repeats.

static int me;
static const char *doing = "start";
static uint64_t state;

// How many operations this worker has begun.
static unsigned long number(void);

static void stop(int status, const char *format, ...) {
    int saved = errno;
    va_list list;
    va_start(list, format);
    fprintf(stderr, "worker %d, operation %lu, %s: ", me, number(), doing);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (errno %d: %s)\n", saved, strerror(saved));
    exit(status);
}

// Whether the torture that started this worker, $TORTURE, was itself ended. Asked for now and then.
static int is_orphan(unsigned long step) {
    const char *torture = getenv("TORTURE");
    return step % 256 == 0 && torture && kill(atoi(torture), 0);
}

static uint32_t pick(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 20) % below;
}
