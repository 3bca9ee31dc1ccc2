#include "registry/pg_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- where they are ------------------------------------------------------------------------------ */

static bool has_programs(const char *bindir, const char *const *programs)
{
    bool ok = true;
    for (size_t i = 0; ok && programs[i]; i++) {
        char *path = mlo_fs_join(bindir, programs[i], NULL);
        ok = path && access(path, X_OK) == 0;
        free(path);
    }
    return ok;
}

static char *in_debian_folders(int major, const char *const *programs)
{
    glob_t found;
    char *best = NULL;
    int best_number = 0;
    if (glob("/usr/lib/postgresql/*/bin", GLOB_NOSORT, NULL, &found) != 0)
        return NULL;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *number_text = found.gl_pathv[i] + strlen("/usr/lib/postgresql/");
        int number = (int)strtol(number_text, NULL, 10);
        if (!has_programs(found.gl_pathv[i], programs) || (major && number != major))
            continue;
        if (number > best_number) {
            free(best);
            best = strdup(found.gl_pathv[i]);
            best_number = number;
        }
    }
    globfree(&found);
    return best;
}

static char *in_path(const char *const *programs)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *dir = strndup(path, n);
        if (dir && n > 0 && has_programs(dir, programs))
            return dir;
        free(dir);
        path += n + (path[n] == ':');
    }
    return NULL;
}

enum mlo_status mlo_pg_bindir(int major, const char *const *programs, char **out, struct mlo_error *err)
{
    const char *told = getenv("MLOPT_PG_BINDIR");
    *out = NULL;
    if (told && *told) {
        if (!has_programs(told, programs))
            return mlo_error_set(err, MLO_ENOTFOUND, "MLOPT_PG_BINDIR=%.200s has no %s%s%s", told,
                                 programs[0], programs[1] ? " and " : "", programs[1] ? programs[1] : "");
        *out = strdup(told);
        return *out ? MLO_OK : mlo_error_nomem(err);
    }
    *out = in_debian_folders(major, programs);
    if (!*out)
        *out = in_path(programs);
    return *out ? MLO_OK : mlo_error_set(err, MLO_ENOTFOUND, "%s is not on this machine", programs[0]);
}

/* --- running one --------------------------------------------------------------------------------- */

enum { SETTINGS_MAX = 64, LOG_MAX = 1 << 20 };

/* What libpq reads from the environment, of this connection; ended by NULL. The texts are the caller's. */
static bool settings_of(PGconn *pg, char **env)
{
    size_t n = 0;
    bool ok = true;
    PQconninfoOption *options = PQconninfo(pg);
    for (const PQconninfoOption *o = options; o && o->keyword && ok && n + 3 < SETTINGS_MAX; o++) {
        struct mlo_buf text = MLO_BUF_INIT;
        if (!o->envvar || !o->val || !*o->val || strcmp(o->keyword, "options") == 0)
            continue;
        mlo_buf_printf(&text, "%s=%s", o->envvar, o->val);
        env[n] = mlo_buf_take(&text);
        ok = env[n++] != NULL;
    }
    ok = ok && options;
    PQconninfoFree(options);
    if (ok)
        ok = (env[n++] = strdup("PGOPTIONS")) && (env[n++] = strdup("LC_ALL=C")); /* a bare name unsets it */
    return ok;
}

static void forget_settings(char **env)
{
    for (size_t i = 0; env[i]; i++) {
        explicit_bzero(env[i], strlen(env[i]));
        free(env[i]);
    }
}

static enum mlo_status failed(const struct mlo_pg_tool *tool, int exit_code, struct mlo_error *err)
{
    struct mlo_buf log = MLO_BUF_INIT;
    struct mlo_error ignored = {0};
    const char *line = "";
    if (mlo_fs_read(tool->log, LOG_MAX, &log, &ignored) == MLO_OK && log.len) {
        while (log.len && log.data[log.len - 1] == '\n')
            log.data[--log.len] = '\0';
        line = strstr(log.data, "error: "); /* the first one; what follows comes of it */
        if (!line) {
            line = strrchr(log.data, '\n');
            line = line ? line + 1 : log.data;
        }
    }
    mlo_error_set(err, MLO_EIO, "%s failed with exit code %d%s%.*s", tool->program, exit_code,
                  *line ? ": " : "", (int)strcspn(line, "\n"), line);
    mlo_buf_clear(&log);
    return MLO_EIO;
}

static enum mlo_status find(struct mlo_db_conn *conn, const struct mlo_pg_tool *tool, char **program,
                            struct mlo_error *err)
{
    const char *const programs[] = {tool->program, NULL};
    char *bindir = NULL;
    int major = PQserverVersion(mlo_db_pg(conn)) / 10000;
    enum mlo_status status = mlo_pg_bindir(major, programs, &bindir, err);
    if (status == MLO_ENOTFOUND)
        status = mlo_pg_bindir(0, programs, &bindir, err);
    if (status == MLO_ENOTFOUND) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "%s is not on this machine", tool->program);
        mlo_error_hint(err, "apt install postgresql-client-%d, or set MLOPT_PG_BINDIR to its folder", major);
    }
    if (status == MLO_OK) {
        *program = mlo_fs_join(bindir, tool->program, NULL);
        status = *program ? MLO_OK : mlo_error_nomem(err);
    }
    free(bindir);
    return status;
}

enum mlo_status mlo_pg_tool_run(struct mlo_db_conn *conn, const struct mlo_pg_tool *tool,
                                struct mlo_error *err)
{
    enum { ARGS_MAX = 32 };
    char *program = NULL, *env[SETTINGS_MAX] = {NULL};
    const char *argv[ARGS_MAX] = {NULL};
    int log = -1, in = -1, out = -1, exit_code = 0;
    enum mlo_status status;
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    MLO_TRY(find(conn, tool, &program, err));
    argv[0] = program;
    for (size_t i = 0; tool->args[i] && i + 2 < ARGS_MAX; i++)
        argv[i + 1] = tool->args[i];
    if (!settings_of(mlo_db_pg(conn), env)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    log = open(tool->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (tool->input)
        in = open(tool->input, O_RDONLY | O_CLOEXEC);
    if (tool->output)
        out = open(tool->output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (log < 0 || (tool->input && in < 0) || (tool->output && out < 0)) {
        status = mlo_error_errno(err, errno, "cannot open %s",
                                 log < 0                 ? tool->log
                                 : tool->input && in < 0 ? tool->input
                                                         : tool->output);
        goto out;
    }
    o.argv = argv;
    o.env = (const char *const *)env;
    o.stdin_fd = in;
    o.stdout_fd = out < 0 ? log : out;
    o.stderr_fd = log;
    o.die_with_parent = true;
    MLO_TRY(mlo_process_run(&o, 0, 0, NULL, &exit_code, err));
    if (exit_code != 0)
        status = failed(tool, exit_code, err);
    else if (out >= 0 && fsync(out) != 0)
        status = mlo_error_errno(err, errno, "cannot write %s", tool->output);
    if (status == MLO_OK)
        unlink(tool->log);
out:
    if (log >= 0)
        close(log);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    forget_settings(env);
    free(program);
    return status;
}
