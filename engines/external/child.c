/* The adapter's process: finding it, starting it, asking it, ending it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engines/external/external_impl.h"

enum { HELLO_TIMEOUT_MS = 120000, QUIT_TIMEOUT_MS = 2000, STDERR_SHOWN = 4096 };

/* The program in PATH, or as given when it holds a slash; yours, or NULL. */
static char *find_program(const char *name)
{
    if (strchr(name, '/'))
        return strdup(name);
    const char *path = getenv("PATH");
    for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
        size_t length = strcspn(p, ":");
        char *candidate = NULL;
        if (length && asprintf(&candidate, "%.*s/%s", (int)length, p, name) >= 0) {
            if (access(candidate, X_OK) == 0)
                return candidate;
            free(candidate);
        }
        p += length + (p[length] == ':');
    }
    return NULL;
}

static const struct mlo_embedded_file *embedded(const char *name)
{
    for (size_t i = 0; i < ext_adapter_files_count; i++)
        if (strcmp(ext_adapter_files[i].name, name) == 0)
            return &ext_adapter_files[i];
    return NULL;
}

/* The adapter's text: what all have in common, then the runtime's own part. */
static enum mlo_status script_text(const struct ext_runtime *runtime, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    const struct mlo_embedded_file *common = embedded("mlopt_adapter.py"), *own = embedded(runtime->script);
    if (!common || !own)
        return mlo_error_set(err, MLO_EINTERNAL, "the adapter %s is not part of this program",
                             runtime->script);
    mlo_buf_append(out, common->text, common->size);
    mlo_buf_append(out, own->text, own->size);
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status spawn(const struct ext_runtime *runtime, int fd, int stderr_fd, pid_t *pid,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf script = MLO_BUF_INIT;
    const char *python = getenv("MLOPT_PYTHON"), *own = getenv("MLOPT_ADAPTER");
    const char *name = !runtime->script ? own : python && *python ? python : "python3";
    char *program = name && *name ? find_program(name) : NULL;
    if (!program) {
        status =
            !name || !*name
                ? mlo_error_set(err, MLO_EUNAVAILABLE, "MLOPT_ADAPTER does not name an adapter's program")
                : mlo_error_set(err, MLO_EUNAVAILABLE, "there is no program %s in PATH", name);
        mlo_error_hint(err, runtime->script ? "set MLOPT_PYTHON to a Python that has the runtime"
                                            : "docs/external-engines.md says how to write one");
        goto out;
    }
    const char *argv[] = {program, runtime->script ? "-c" : "mlopt-adapter", NULL, NULL};
    if (runtime->script) {
        MLO_TRY(script_text(runtime, &script, err));
        argv[2] = mlo_buf_str(&script);
    }
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    options.stdin_fd = options.stdout_fd = fd;
    options.stderr_fd = stderr_fd;
    status = mlo_process_start(&options, pid, err);
    if (status != MLO_OK && err)
        err->status = status = MLO_EUNAVAILABLE;
out:
    free(program);
    mlo_buf_clear(&script);
    return status;
}

static void reap(struct ext_child *child, uint64_t wait_ms)
{
    uint64_t deadline_ns = mlo_clock_ns() + wait_ms * 1000000;
    if (child->fd >= 0)
        close(child->fd); /* the end of its input: it leaves */
    child->fd = -1;
    while (child->pid > 0) {
        pid_t got = waitpid(child->pid, NULL, WNOHANG);
        if (got == child->pid || (got < 0 && errno != EINTR)) {
            child->pid = 0;
        } else if (mlo_clock_ns() >= deadline_ns) {
            kill(child->pid, SIGKILL);
            deadline_ns = UINT64_MAX;
        } else {
            mlo_clock_sleep_ms(1);
        }
    }
}

/* The last line that the adapter wrote to stderr: what a Python traceback ends with. */
static void quote_stderr(const struct ext_child *child, struct mlo_error *err)
{
    char said[STDERR_SHOWN + 1];
    struct mlo_buf why = MLO_BUF_INIT;
    off_t end = child->stderr_fd >= 0 ? lseek(child->stderr_fd, 0, SEEK_END) : 0;
    ssize_t n = end > 0 ? pread(child->stderr_fd, said, STDERR_SHOWN, MLO_MAX(end - STDERR_SHOWN, 0)) : 0;
    while (n > 0 && (said[n - 1] == '\n' || said[n - 1] == ' '))
        n--;
    said[n > 0 ? n : 0] = '\0';
    const char *line = strrchr(said, '\n');
    line = line ? line + 1 : said;
    if (err && *line) {
        mlo_buf_printf(&why, "%s: %s", err->message, line);
        mlo_error_set(err, err->status, "%s", mlo_buf_str(&why));
    }
    mlo_buf_clear(&why);
}

/* What the adapter itself reports. */
static enum mlo_status reported(const struct ext_child *child, const json_t *error, struct mlo_error *err)
{
    enum mlo_status status = mlo_status_from_code(mlo_json_str(error, "code", ""));
    mlo_error_set(err, status, "%s: %s", child->runtime->name,
                  mlo_json_str(error, "message", "the runtime failed"));
    if (*mlo_json_str(error, "hint", ""))
        mlo_error_hint(err, "%s", mlo_json_str(error, "hint", ""));
    return status;
}

enum mlo_status ext_child_ask(struct ext_child *child, const char *verb, json_t *request,
                              const struct ext_bytes *parts, size_t part_count, uint64_t timeout_ms,
                              struct ext_reply *reply, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *header = request ? request : json_object();
    uint64_t deadline_ns = mlo_clock_ns() + timeout_ms * 1000000, bytes = 0;
    *reply = (struct ext_reply){0};
    for (size_t i = 0; i < part_count; i++)
        bytes += parts[i].size;
    if (json_object_set_new(header, "verb", json_string(verb)) != 0 ||
        json_object_set_new(header, "payload_bytes", json_integer((json_int_t)bytes)) != 0) {
        json_decref(header);
        return mlo_error_nomem(err);
    }
    if (child->fd < 0)
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "the adapter was ended after an earlier failure");
    if (status == MLO_OK)
        status = ext_send(child->fd, header, parts, part_count, deadline_ns, err);
    if (status == MLO_OK)
        status = ext_receive(child->fd, deadline_ns, reply, err);
    json_decref(header);
    if (status != MLO_OK) {
        if (child->fd >= 0)
            reap(child, status == MLO_EIO ? QUIT_TIMEOUT_MS : 0);
        quote_stderr(child, err);
        mlo_error_prefix(err, "%s, verb '%s'", child->runtime->name, verb);
        return status;
    }
    const json_t *error = json_object_get(reply->header, "error");
    if (!error)
        return MLO_OK;
    status = reported(child, error, err);
    ext_reply_clear(reply);
    return status;
}

enum mlo_status ext_child_start(const struct ext_runtime *runtime, struct ext_child **out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int pair[2] = {-1, -1};
    struct ext_reply reply = {0};
    struct ext_child *child = calloc(1, sizeof *child);
    if (!child)
        return mlo_error_nomem(err);
    *child = (struct ext_child){.runtime = runtime, .fd = -1, .stderr_fd = -1};
    child->stderr_fd = memfd_create("adapter-stderr", MFD_CLOEXEC);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        status = mlo_error_errno(err, errno, "cannot start the adapter");
        goto out;
    }
    MLO_TRY(spawn(runtime, pair[1], child->stderr_fd, &child->pid, err));
    close(pair[1]);
    pair[1] = -1;
    child->fd = pair[0];
    pair[0] = -1;
    MLO_TRY(ext_child_ask(child, "hello", json_pack("{s:i}", "protocol", EXT_PROTOCOL), NULL, 0,
                          HELLO_TIMEOUT_MS, &reply, err));
    if (mlo_json_i64(reply.header, "protocol", 0) != EXT_PROTOCOL) {
        status =
            mlo_error_set(err, MLO_EUNSUPPORTED, "%s: the adapter speaks protocol %lld, not %d",
                          runtime->name, (long long)mlo_json_i64(reply.header, "protocol", 0), EXT_PROTOCOL);
        goto out;
    }
    snprintf(child->version, sizeof child->version, "%s (%s %s)", runtime->name,
             mlo_json_str(reply.header, "runtime", "unnamed"),
             mlo_json_str(reply.header, "version", "of unknown version"));
    *out = child;
    child = NULL;
out:
    if (pair[0] >= 0)
        close(pair[0]);
    if (pair[1] >= 0)
        close(pair[1]);
    ext_reply_clear(&reply);
    ext_child_stop(child);
    return status;
}

void ext_child_stop(struct ext_child *child)
{
    struct ext_reply reply = {0};
    if (!child)
        return;
    if (child->fd >= 0 &&
        ext_child_ask(child, "quit", NULL, NULL, 0, QUIT_TIMEOUT_MS, &reply, NULL) == MLO_OK)
        ext_reply_clear(&reply);
    reap(child, QUIT_TIMEOUT_MS);
    if (child->stderr_fd >= 0)
        close(child->stderr_fd);
    free(child);
}
