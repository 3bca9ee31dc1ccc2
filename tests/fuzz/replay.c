/* The main function of targets without libFuzzer: runs every file of the folders that are named, and with
 * --seconds changes of them, drawn from a seed. The same seed tries the same inputs in the same order.
 *
 *     fuzz.TARGET [--seconds S] [--most N] [--seed N] [--keep FILE] PATH…
 *
 * An input that ends the process, or takes longer than ten seconds, is left in --keep FILE. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 1 << 16, INPUTS_MAX = 8192, TIMEOUT_S = 10, NAME_SIZE = 1024 };

#pragma weak LLVMFuzzerCustomMutator
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

struct input {
    char *name;
    uint8_t *bytes;
    size_t size;
};

static struct input inputs[INPUTS_MAX];
static size_t input_count;
static const uint8_t *current;
static size_t current_size;
static const char *keep = "fuzz-input";
static uint64_t random_state;

static uint64_t random_next(void) /* SplitMix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t bound)
{
    return (size_t)(random_next() % bound);
}

/* --- the input at hand is left behind when the process ends --------------------------------------------- */

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void leave_input(void)
{
    if (!current)
        return;
    int fd = open(keep, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && write(fd, current, current_size) == (ssize_t)current_size) {
        say("the input is left in ");
        say(keep);
        say("\n");
    }
    current = NULL;
}

static void on_signal(int signal_number)
{
    if (signal_number == SIGPROF)
        say("the input takes longer than ten seconds of a processor\n");
    leave_input();
    signal(signal_number, SIG_DFL);
    raise(signal_number == SIGPROF ? SIGABRT : signal_number);
}

static void watch(void)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    signal(SIGPROF, on_signal);
    if (__sanitizer_set_death_callback) { /* its own handlers report more */
        __sanitizer_set_death_callback(leave_input);
        signal(SIGABRT, on_signal);
        return;
    }
    for (size_t i = 0; i < MLO_COUNT(fatal); i++)
        signal(fatal[i], on_signal);
}

static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1); /* of its own size, so that reading past its end is seen */
    if (!copy)
        exit(1);
    memcpy(copy, bytes, size);
    current = copy;
    current_size = size;
    /* of the processor's time: a loaded machine is no slow input */
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = TIMEOUT_S}, NULL);
    LLVMFuzzerTestOneInput(copy, size);
    setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
    current = NULL;
    free(copy);
}

/* --- reading the corpus --------------------------------------------------------------------------------- */

static void add(const char *path)
{
    struct mlo_error err = {0};
    struct mlo_buf bytes = MLO_BUF_INIT;
    if (mlo_fs_read(path, (size_t)16 << 20, &bytes, &err) != MLO_OK || input_count == INPUTS_MAX) {
        fprintf(stderr, "%s: %s\n", path, err.message[0] ? err.message : "too many inputs");
        exit(1);
    }
    struct input *input = &inputs[input_count++];
    input->name = strdup(path);
    input->size = bytes.len;
    input->bytes = (uint8_t *)mlo_buf_take(&bytes);
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void add_path(const char *path)
{
    struct stat st;
    struct dirent **list = NULL;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        add(path);
        return;
    }
    int count = scandir(path, &list, visible, alphasort);
    if (count <= 0) {
        fprintf(stderr, "%s: no inputs there\n", path);
        exit(1);
    }
    for (int i = 0; i < count; i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "%s/%s", path, list[i]->d_name);
        add(name);
        free(list[i]);
    }
    free(list);
}

/* --- changes -------------------------------------------------------------------------------------------- */

static size_t insert(uint8_t *data, size_t size, size_t max_size)
{
    size_t at = below(size + 1), count = 1 + below(8);
    count = MLO_MIN(count, max_size - size);
    memmove(data + at + count, data + at, size - at);
    for (size_t i = 0; i < count; i++)
        data[at + i] = (uint8_t)(below(2) ? random_next() : below(8) ? data[below(size + 1)] : 0);
    return size + count;
}

static size_t erase(uint8_t *data, size_t size)
{
    size_t at = below(size), count = 1 + below(below(4) ? 4 : 64);
    count = MLO_MIN(count, size - at);
    memmove(data + at, data + at + count, size - at - count);
    return size - count;
}

static void overwrite(uint8_t *data, size_t size)
{
    static const int64_t edges[] = {0,     1,     -1,        127,       128,       255,
                                    32767, 65535, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    size_t at = below(size), width = (size_t)1 << below(4);
    width = MLO_MIN(width, size - at);
    int64_t value = edges[below(MLO_COUNT(edges))];
    bool big_endian = below(2);
    for (size_t i = 0; i < width; i++)
        data[at + i] = (uint8_t)(value >> 8 * (big_endian ? width - 1 - i : i));
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    for (size_t rounds = 1 + below(3); rounds > 0; rounds--) {
        size_t what = below(6);
        if ((what == 0 || size == 0) && size < max_size)
            size = insert(data, size, max_size);
        else if (what == 1 && size > 1)
            size = erase(data, size);
        else if (what == 2 && size)
            overwrite(data, size);
        else if (what == 3 && size)
            data[below(size)] ^= (uint8_t)(1u << below(8));
        else if (what == 4 && size)
            data[below(size)] = (uint8_t) "0123456789-.,:[]{}\"'\n\\ eE"[below(25)];
        else if (size)
            data[below(size)] = (uint8_t)random_next();
    }
    return size;
}

/* Mostly changes of one input of the corpus, several in turn, as a longer search would pile them up. */
static void change(uint64_t seed, int seconds, uint64_t most)
{
    static uint8_t bytes[INPUT_MAX];
    uint64_t runs = 0, begin = mlo_clock_ns(), end = begin + (uint64_t)seconds * 1000000000u;
    random_state = seed;
    while (mlo_clock_ns() < end && runs < most) {
        const struct input *from = &inputs[below(input_count)];
        size_t size = from->size;
        if (size > INPUT_MAX)
            continue;
        if (size)
            memcpy(bytes, from->bytes, size);
        for (size_t rounds = 1 + below(4); rounds > 0; rounds--)
            size = LLVMFuzzerCustomMutator
                       ? LLVMFuzzerCustomMutator(bytes, size, sizeof bytes, (unsigned)random_next())
                       : LLVMFuzzerMutate(bytes, size, sizeof bytes);
        run(bytes, size);
        runs++;
    }
    printf("%llu changed inputs, seed %llu\n", (unsigned long long)runs, (unsigned long long)seed);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int64_t seconds = 0, most = INT64_MAX, number;
    for (int i = 1; i < argc; i++) {
        bool takes = strcmp(argv[i], "--seconds") == 0 || strcmp(argv[i], "--seed") == 0 ||
                     strcmp(argv[i], "--most") == 0;
        if (takes && i + 1 < argc && mlo_str_to_i64(argv[i + 1], &number) && number >= 0) {
            if (strcmp(argv[i], "--seed") == 0)
                seed = (uint64_t)number;
            else if (strcmp(argv[i], "--most") == 0)
                most = number;
            else
                seconds = number;
            i++;
        } else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc) {
            keep = argv[++i];
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: %s [--seconds S] [--most N] [--seed N] [--keep FILE] PATH…\n", argv[0]);
            return 2;
        } else {
            add_path(argv[i]);
        }
    }
    const char *text = getenv("MLO_TEST_SEED");
    if (text && mlo_str_to_i64(text, &number))
        seed = (uint64_t)number;
    watch();
    for (size_t i = 0; i < input_count; i++) {
        if (seconds == 0)
            run(inputs[i].bytes, inputs[i].size);
    }
    if (seconds == 0)
        printf("%zu inputs\n", input_count);
    else if (input_count)
        change(seed, (int)seconds, (uint64_t)most);
    for (size_t i = 0; i < input_count; i++) {
        free(inputs[i].name);
        free(inputs[i].bytes);
    }
    return input_count ? 0 : 1;
}
