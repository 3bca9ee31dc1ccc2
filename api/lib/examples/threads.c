/* Throughput: N threads share one session, so one plan and one copy of the weights; each call in flight has
 * buffers of its own.
 *
 *     cc threads.c $(pkg-config --cflags --libs mlopt) -pthread -o threads && ./threads model.onnx 4 2.0
 */
#include <mlopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct work {
    struct mlopt_session *session;
    double end;
    long calls;
    int failed;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *worker(void *arg)
{
    struct work *w = arg;
    struct mlopt_port port;
    struct mlopt_tensor x = {0}, y = {0};
    size_t count = 1;
    mlopt_session_input(w->session, 0, &port);
    x.type = (enum mlopt_type)port.type;
    x.rank = port.rank;
    for (int d = 0; d < x.rank; d++)
        count *= (size_t)(x.dims[d] = port.dims[d] < 0 ? 1 : port.dims[d]);
    x.size_bytes = count * mlopt_type_size(x.type);
    x.data = calloc(1, x.size_bytes + 1);
    while (x.data && now() < w->end && !w->failed) { /* y is allocated by the first call, and used again */
        w->failed = mlopt_session_run(w->session, &x, 1, &y, 1, NULL) != MLOPT_OK;
        w->calls++;
    }
    mlopt_tensor_clear(&y);
    free(x.data);
    return NULL;
}

int main(int argc, char **argv)
{
    enum { MOST = 64 };
    struct mlopt_error error;
    struct mlopt_stats stats = {.struct_size = sizeof stats};
    struct work work[MOST];
    pthread_t threads[MOST];
    int count = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2, failed = 0;
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 1;
    long calls = 0;
    if (argc < 2 || count < 1 || count > MOST) {
        fprintf(stderr, "usage: threads model.onnx [THREADS [SECONDS]]\n");
        return 2;
    }
    struct mlopt_session *session;
    if (mlopt_session_open(argv[1], NULL, &session, &error) != MLOPT_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    if (mlopt_session_input_count(session) != 1 || mlopt_session_output_count(session) != 1) {
        fprintf(stderr, "this example is for models with one input and one output\n");
        mlopt_session_close(session);
        return 1;
    }
    double begin = now();
    for (int i = 0; i < count; i++) {
        work[i] = (struct work){session, begin + seconds, 0, 0};
        if (pthread_create(&threads[i], NULL, worker, &work[i]) != 0)
            return 1;
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        calls += work[i].calls;
        failed |= work[i].failed;
    }
    mlopt_session_stats(session, &stats);
    printf("%d threads: %.0f calls a second; %llu plan, %llu sets of buffers, %.1f MiB\n", count,
           (double)calls / (now() - begin), (unsigned long long)stats.plans,
           (unsigned long long)stats.programs, (double)stats.bytes / 1048576);
    mlopt_session_close(session);
    return failed;
}
