/* Where the private PostgreSQL lives: its programs, its user, its folders. */
#include "registry/embedded_impl.h"
#include "registry/pg_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* sockaddr_un holds 107 characters; the name in the folder is ".s.PGSQL.5432" and its lock ".lock" */
enum { SOCKET_DIR_MAX = 107 - 20 };

enum mlo_status mlo_embedded_log_tail(const struct mlo_embedded *pg, enum mlo_status status,
                                      struct mlo_error *err)
{
    char tail[1024], *path = mlo_fs_join(pg->dir, "postgres.log", NULL);
    if (!err || !path) {
        free(path);
        return status;
    }
    off_t size = lseek(pg->log_fd, 0, SEEK_END);
    off_t begin = size > (off_t)sizeof tail - 1 ? size - (off_t)sizeof tail + 1 : 0;
    ssize_t n = size > 0 ? pread(pg->log_fd, tail, sizeof tail - 1, begin) : 0;
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == ' '))
        n--;
    tail[n > 0 ? n : 0] = '\0';
    /* of the last lines, the one that says FATAL or ERROR */
    const char *line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    for (const char *p = strstr(tail, "FATAL"); p; p = strstr(p + 1, "FATAL"))
        line = p;
    size_t used = strlen(err->message);
    if (*line)
        snprintf(err->message + used, sizeof err->message - used, ": %.*s", (int)strcspn(line, "\n"), line);
    mlo_error_where(err, "%s", path);
    free(path);
    return status;
}

/* The major version of the existing cluster: "15"; "" when there is none. */
static void cluster_version(const char *cluster, char out[8])
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error ignored = {0};
    char *path = mlo_fs_join(cluster, "PG_VERSION", NULL);
    out[0] = '\0';
    if (path && mlo_fs_read(path, 64, &text, &ignored) == MLO_OK)
        snprintf(out, 8, "%.*s", (int)MLO_MIN(strcspn(mlo_buf_str(&text), "\n"), (size_t)7),
                 mlo_buf_str(&text));
    mlo_buf_clear(&text);
    free(path);
}

static enum mlo_status find_programs(struct mlo_embedded *pg, struct mlo_error *err)
{
    static const char *const programs[] = {"initdb", "postgres", NULL};
    char version[8];
    cluster_version(pg->cluster, version);
    enum mlo_status status = mlo_pg_bindir((int)strtol(version, NULL, 10), programs, &pg->bindir, err);
    if (status == MLO_ENOTFOUND && !getenv("MLOPT_PG_BINDIR")) {
        mlo_error_set(err, MLO_EUNAVAILABLE, "no PostgreSQL server programs%s%s on this machine",
                      *version ? " of version " : "", version);
        mlo_error_hint(
            err, "apt install postgresql-%s, or set MLOPT_PG_BINDIR to the folder of initdb and postgres",
            *version ? version : "15");
        return MLO_EUNAVAILABLE;
    }
    return status;
}

static enum mlo_status find_user(struct mlo_embedded *pg, struct mlo_error *err)
{
    static const char *const users[] = {"postgres", "nobody"};
    if (geteuid() != 0)
        return MLO_OK;
    for (size_t i = 0; i < MLO_COUNT(users); i++) {
        struct passwd entry, *found = NULL;
        char text[4096];
        if (getpwnam_r(users[i], &entry, text, sizeof text, &found) == 0 && found && found->pw_uid != 0) {
            pg->uid = found->pw_uid;
            pg->gid = found->pw_gid;
            return MLO_OK;
        }
    }
    return mlo_error_set(err, MLO_EUNAVAILABLE,
                         "PostgreSQL refuses to run as root, and there is no user postgres");
}

/* Another user must be able to walk to `path`. Names the first folder that is in the way. */
static enum mlo_status check_reachable(const struct mlo_embedded *pg, const char *path, struct mlo_error *err)
{
    if (!pg->uid)
        return MLO_OK;
    char *part = strdup(path);
    if (!part)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    for (char *slash = strchr(part + 1, '/'); slash && status == MLO_OK; slash = strchr(slash + 1, '/')) {
        struct stat st;
        *slash = '\0';
        if (stat(part, &st) == 0) {
            mode_t need = st.st_uid == pg->uid ? S_IXUSR : st.st_gid == pg->gid ? S_IXGRP : S_IXOTH;
            if (!(st.st_mode & need)) {
                struct passwd entry, *found = NULL;
                char text[4096];
                getpwuid_r(pg->uid, &entry, text, sizeof text, &found);
                status = mlo_error_set(err, MLO_EFORBIDDEN,
                                       "PostgreSQL cannot run as root; as user %s it cannot enter %.300s",
                                       found ? found->pw_name : "?", part);
                mlo_error_hint(
                    err, "choose a data folder that other users can reach, such as /var/lib/mlopt, or run "
                         "mlopt as an ordinary user");
            }
        }
        *slash = '/';
    }
    free(part);
    return status;
}

/* A folder of mode 0700 that belongs to the user PostgreSQL runs as. */
static enum mlo_status private_folder(const struct mlo_embedded *pg, const char *path, struct mlo_error *err)
{
    struct stat st;
    uid_t owner = pg->uid ? pg->uid : geteuid();
    if (mkdir(path, 0700) == 0) {
        if (pg->uid && chown(path, pg->uid, pg->gid) != 0)
            return mlo_error_errno(err, errno, "cannot give %s to PostgreSQL's user", path);
        return MLO_OK;
    }
    if (errno != EEXIST)
        return mlo_error_errno(err, errno, "cannot make %s", path);
    if (lstat(path, &st) != 0)
        return mlo_error_errno(err, errno, "cannot look at %s", path);
    if (!S_ISDIR(st.st_mode) || (st.st_uid != owner && st.st_uid != geteuid()))
        return mlo_error_set(err, MLO_EFORBIDDEN, "%s belongs to somebody else", path);
    if (st.st_uid != owner && chown(path, pg->uid, pg->gid) != 0)
        return mlo_error_errno(err, errno, "cannot give %s to PostgreSQL's user", path);
    if ((st.st_mode & 07777) != 0700 && chmod(path, 0700) != 0)
        return mlo_error_errno(err, errno, "cannot make %s private", path);
    return MLO_OK;
}

/* The socket's folder: dir/socket, or one in /tmp with a name made from dir when that path is too long. */
static enum mlo_status place_socket(struct mlo_embedded *pg, struct mlo_error *err)
{
    pg->socket_dir = mlo_fs_join(pg->dir, "socket", NULL);
    if (pg->socket_dir && strlen(pg->socket_dir) > SOCKET_DIR_MAX) {
        struct mlo_digest digest;
        char hex[MLO_DIGEST_TEXT_SIZE], path[64];
        mlo_digest_of(pg->dir, strlen(pg->dir), &digest);
        snprintf(path, sizeof path, "/tmp/mlopt-%u-%.16s", (unsigned)geteuid(), mlo_digest_hex(&digest, hex));
        free(pg->socket_dir);
        pg->socket_dir = strdup(path);
        pg->short_socket_dir = true;
    }
    if (!pg->socket_dir)
        return mlo_error_nomem(err);
    return private_folder(pg, pg->socket_dir, err);
}

enum mlo_status mlo_embedded_place(struct mlo_embedded *pg, const char *dir, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *log = NULL;
    MLO_TRY(mlo_fs_mkdirs(dir, err));
    pg->dir = realpath(dir, NULL);
    if (!pg->dir) {
        status = mlo_error_errno(err, errno, "cannot find %s", dir);
        goto out;
    }
    pg->cluster = mlo_fs_join(pg->dir, "cluster", NULL);
    log = mlo_fs_join(pg->dir, "postgres.log", NULL);
    if (!pg->cluster || !log) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(find_programs(pg, err));
    MLO_TRY(find_user(pg, err));
    MLO_TRY(check_reachable(pg, pg->dir, err));
    MLO_TRY(private_folder(pg, pg->dir, err));
    MLO_TRY(place_socket(pg, err));
    pg->log_fd = open(log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (pg->log_fd < 0)
        status = mlo_error_errno(err, errno, "cannot open %s", log);
out:
    free(log);
    return status;
}
