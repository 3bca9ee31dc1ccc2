/* A private S3 server (Ceph) per test program, by tests/s3/ceph.sh. Without Debian's packages the program
 * says so and exits with 77, which ctest counts as skipped.
 *
 *     int main(void)
 *     {
 *         s3_fixture_start("memstore");
 *         …
 *         int failed = cmocka_run_group_tests(tests, NULL, NULL);
 *         s3_fixture_stop();
 *         return failed;
 *     }
 *
 * The server ends with the program, however that ends: its script reads from our pipe. */
#ifndef MLO_TESTS_S3_FIXTURE_H
#define MLO_TESTS_S3_FIXTURE_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "registry/s3_client.h"
#include "tests/cm.h"

enum { S3_PATIENCE_MS = 180000, S3_SKIP = 77 };

static struct {
    char *dir;
    unsigned port, tls_port;
    char endpoint[64], tls_endpoint[64], ca_file[160];
    pid_t pid;
    int commands, answers;
} s3_server;

/* A line from the script, without its end; exits when none comes. */
static inline void s3_fixture_line(char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && read(s3_server.answers, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
}

static inline void s3_fixture_stop(void)
{
    close(s3_server.commands);
    close(s3_server.answers);
    waitpid(s3_server.pid, NULL, 0);
    mlo_fs_remove_tree(s3_server.dir);
    free(s3_server.dir);
    s3_server.dir = NULL;
}

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
    const char *const argv[] = {"/bin/bash", MLOPT_SOURCE_DIR "/tests/s3/ceph.sh", s3_server.dir, store,
                                NULL};
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
}

/* Tells the script something, and waits until it is done. */
static inline void s3_fixture_command(const char *what)
{
    char line[256];
    assert_true(dprintf(s3_server.commands, "%s\n", what) > 0);
    s3_fixture_line(line, sizeof line);
    assert_string_equal(line, "ok");
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
    const struct mlo_s3_options o = {.bucket = bucket, .endpoint = s3_server.endpoint, .region = "us-east-1"};
    assert_ok(mlo_s3_open(&o, &s3, &err));
    assert_ok(mlo_s3_make_bucket(s3, &err));
    return s3;
}

#endif
