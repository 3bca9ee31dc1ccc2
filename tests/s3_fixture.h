/* A private S3 server per test program: Ceph by tests/s3/ceph.sh, or, where the program takes it as its
 * argument (s3_fixture_choose), Swift by tests/s3/swift.sh. Without Debian's packages the program says so and
 * exits with 77, which ctest counts as skipped.
 *
 *     int main(void)
 *     {
 *         s3_fixture_start("memstore");
 *         …
 *         int failed = cmocka_run_group_tests(tests, NULL, NULL);
 *         return s3_fixture_end(failed);
 *     }
 *
 * The server ends with the program, however that ends: its script reads from our pipe. And when one of the
 * server's daemons ends by itself the program says which, with the ends of the logs, and ends at once: it
 * does not wait for an answer that cannot come. */
#ifndef MLO_TESTS_S3_FIXTURE_H
#define MLO_TESTS_S3_FIXTURE_H

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "registry/s3_client.h"
#include "tests/cm.h"

/* A request is given up after S3_ATTEMPTS times S3_STALL_MS: a server that hangs is known in less than two
 * minutes. */
enum { S3_PATIENCE_MS = 110000, S3_STALL_MS = 15000, S3_ATTEMPTS = 5, S3_SKIP = 77 };

static struct {
    bool swift; /* else Ceph */
    char *dir;
    unsigned port, tls_port;
    char endpoint[64], tls_endpoint[64], ca_file[160];
    pid_t pid;
    int commands, answers;
    pthread_t listener;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    unsigned oks; /* answers that nobody has taken yet */
    bool stopping;
} s3_server = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER};

/* A line from the script, without its end; empty when none comes. */
static inline void s3_fixture_line(char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && read(s3_server.answers, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
}

/* Hears what the script says at any time: answers, and that the server has failed. */
static inline void *s3_fixture_listen(void *arg)
{
    MLO_UNUSED(arg);
    for (char line[512];;) {
        s3_fixture_line(line, sizeof line);
        pthread_mutex_lock(&s3_server.lock);
        if (strcmp(line, "ok") == 0) {
            s3_server.oks++;
            pthread_cond_signal(&s3_server.answered);
        } else if (s3_server.stopping) {
            pthread_mutex_unlock(&s3_server.lock);
            return NULL;
        } else {
            fflush(stdout);
            fprintf(stderr, "%s\n", *line ? line : "the S3 server's script ended without a word");
            _exit(1);
        }
        pthread_mutex_unlock(&s3_server.lock);
    }
}

/* Ends the server. */
static inline void s3_fixture_stop(void)
{
    pthread_mutex_lock(&s3_server.lock);
    s3_server.stopping = true;
    pthread_mutex_unlock(&s3_server.lock);
    close(s3_server.commands);
    if (s3_server.listener)
        pthread_join(s3_server.listener, NULL);
    close(s3_server.answers);
    waitpid(s3_server.pid, NULL, 0);
    mlo_fs_remove_tree(s3_server.dir);
    free(s3_server.dir);
    s3_server.dir = NULL;
}

/* The server that the program's arguments name: "swift", or none. Before it is started. */
static inline void s3_fixture_choose(int argc, char **argv)
{
    s3_server.swift = argc == 2 && strcmp(argv[1], "swift") == 0;
    if (argc > 1 && !s3_server.swift) {
        fprintf(stderr, "usage: %s [swift]\n", argv[0]);
        exit(2);
    }
}

/* `store` is Ceph's: "memstore" or "bluestore". */
static inline void s3_fixture_start(const char *store)
{
    struct mlo_error err = {0};
    int in[2], out[2];
    char line[256];
    /* bluestore wants direct I/O, and hangs where a folder in memory has none */
    const char *parent = strcmp(store, "bluestore") == 0 ? "/var/tmp" : NULL;
    if (mlo_fs_tempdir(parent, "mlopt-s3-", &s3_server.dir, &err) != MLO_OK || pipe2(in, O_CLOEXEC) ||
        pipe2(out, O_CLOEXEC)) {
        fprintf(stderr, "no folder for the S3 server: %s\n", err.message);
        exit(1);
    }
    const char *script =
        s3_server.swift ? MLOPT_SOURCE_DIR "/tests/s3/swift.sh" : MLOPT_SOURCE_DIR "/tests/s3/ceph.sh";
    const char *const argv[] = {"/bin/bash", script, s3_server.dir, s3_server.swift ? NULL : store, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    o.stdin_fd = in[0];
    o.stdout_fd = out[1];
    if (mlo_process_start(&o, &s3_server.pid, &err) != MLO_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    close(in[0]);
    close(out[1]);
    s3_server.commands = in[1];
    s3_server.answers = out[0];
    s3_fixture_line(line, sizeof line);
    if (sscanf(line, "ready %u %u", &s3_server.port, &s3_server.tls_port) != 2) {
        printf("%s\n", *line ? line : "the S3 server's script ended without a word");
        bool skip = mlo_str_starts(line, "skip ");
        if (skip) /* else the folder stays, with its logs */
            s3_fixture_stop();
        exit(skip ? S3_SKIP : 1);
    }
    snprintf(s3_server.endpoint, sizeof s3_server.endpoint, "http://127.0.0.1:%u", s3_server.port);
    snprintf(s3_server.tls_endpoint, sizeof s3_server.tls_endpoint, "https://127.0.0.1:%u",
             s3_server.tls_port);
    snprintf(s3_server.ca_file, sizeof s3_server.ca_file, "%s/tls.crt", s3_server.dir);
    setenv("AWS_ACCESS_KEY_ID", "AKIDTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "testsecret", 1);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_create(&s3_server.listener, NULL, s3_fixture_listen, NULL) != 0) {
        fprintf(stderr, "no thread to hear the S3 server's script\n");
        exit(1);
    }
}

/* Tells the script something, and waits until it is done; the script itself bounds that. */
static inline void s3_fixture_command(const char *what)
{
    pthread_mutex_lock(&s3_server.lock);
    bool told = dprintf(s3_server.commands, "%s\n", what) > 0;
    while (told && s3_server.oks == 0)
        pthread_cond_wait(&s3_server.answered, &s3_server.lock);
    if (told)
        s3_server.oks--;
    pthread_mutex_unlock(&s3_server.lock);
    assert_true(told);
}

/* Ends the server and is the program's exit code: after a failed test the server's logs are shown first. */
static inline int s3_fixture_end(int failed)
{
    if (failed)
        s3_fixture_command("explain");
    s3_fixture_stop();
    return failed;
}

/* Runs a command line on the cluster ("radosgw-admin …", "ceph …"); it must succeed. */
static inline void s3_fixture_admin(const char *command)
{
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT, output = MLO_BUF_INIT;
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    int code = -1;
    mlo_buf_printf(&text, "cd '%s' && ./admin %s 2>>log/admin.out", s3_server.dir, command);
    const char *const argv[] = {"/bin/sh", "-c", mlo_buf_str(&text), NULL};
    o.argv = argv;
    assert_ok(mlo_process_run(&o, S3_PATIENCE_MS, 1 << 20, &output, &code, &err));
    if (code != 0)
        fail_msg("%s: exit %d: %s", command, code, mlo_buf_str(&output));
    mlo_buf_clear(&text);
    mlo_buf_clear(&output);
}

/* The process of "rgw", "osd" or "mon". */
static inline pid_t s3_fixture_pid(const char *name)
{
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    char path[256];
    snprintf(path, sizeof path, "%s/run/%s.pid", s3_server.dir, name);
    assert_ok(mlo_fs_read(path, 64, &text, &err));
    pid_t pid = (pid_t)strtol(mlo_buf_str(&text), NULL, 10);
    mlo_buf_clear(&text);
    assert_true(pid > 1);
    return pid;
}

/* A client of a bucket that is made. Yours (mlo_s3_close). */
static inline struct mlo_s3 *s3_fixture_open(const char *bucket)
{
    struct mlo_error err = {0};
    struct mlo_s3 *s3 = NULL;
    const struct mlo_s3_options o = {.bucket = bucket,
                                     .endpoint = s3_server.endpoint,
                                     .region = "us-east-1",
                                     .stall_ms = S3_STALL_MS,
                                     .attempts = S3_ATTEMPTS};
    assert_ok(mlo_s3_open(&o, &s3, &err));
    assert_ok(mlo_s3_make_bucket(s3, &err));
    return s3;
}

#endif
