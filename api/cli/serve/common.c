#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/serve/serve.h"
#include "api/web/web.h"

#define SERVER_FILES_MAX 65536

const char *const mlo_serve_log_formats[] = {"text", "json", NULL};

enum mlo_status mlo_listen_parse(const char *text, struct mlo_listen *out, struct mlo_error *err)
{
    memset(out, 0, sizeof *out);
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    const char *address = text;
    int64_t number;
    if (n >= 2 && *text == '[' && text[n - 1] == ']') {
        address++;
        n -= 2;
    }
    unsigned char ignored[16];
    snprintf(out->address, sizeof out->address, "%.*s", (int)MLO_MIN(n, sizeof out->address - 1), address);
    if (!*out->address || strcmp(out->address, "localhost") == 0)
        snprintf(out->address, sizeof out->address, "127.0.0.1");
    if (!mlo_str_to_i64(port, &number) || number < 0 || number > 65535 ||
        (inet_pton(AF_INET, out->address, ignored) != 1 && inet_pton(AF_INET6, out->address, ignored) != 1)) {
        enum mlo_status status = mlo_error_set(err, MLO_EUSAGE, "cannot listen on '%s'", text);
        mlo_error_hint(err, "--listen takes ADDRESS:PORT, as in --listen " MLO_DEFAULT_LISTEN);
        return status;
    }
    out->port = (uint16_t)number;
    return MLO_OK;
}

char *mlo_listen_url(const struct mlo_listen *listen, bool tls, uint16_t port, char *out, size_t size)
{
    const char *host = listen->address;
    if (strcmp(host, "0.0.0.0") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "::") == 0)
        host = "::1";
    snprintf(out, size, strchr(host, ':') ? "http%s://[%s]:%u" : "http%s://%s:%u", tls ? "s" : "", host,
             port);
    return out;
}

enum mlo_status mlo_serve_tls(const struct mlo_cli *cli, const char **cert, const char **key,
                              struct mlo_error *err)
{
    const struct {
        const char *option, *variable, **out;
    } files[] = {{"tls-cert", "MLOPT_TLS_CERT", cert}, {"tls-key", "MLOPT_TLS_KEY", key}};
    for (size_t i = 0; i < MLO_COUNT(files); i++) {
        const char *text = mlo_cli_opt(cli, files[i].option);
        if (!text)
            text = getenv(files[i].variable);
        *files[i].out = text && *text ? text : NULL;
    }
    if (!*cert == !*key)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "TLS needs a certificate and its key: --%s is missing",
                  files[*cert ? 1 : 0].option);
    mlo_error_hint(err, "or set %s", files[*cert ? 1 : 0].variable);
    return MLO_EUSAGE;
}

enum mlo_status mlo_serve_log(const struct mlo_cli *cli, const char *component, struct mlo_error *err)
{
    const char *level_text = mlo_cli_opt(cli, "log-level"), *format = mlo_cli_opt(cli, "log-format");
    int level = mlo_log_level_parse(level_text ? level_text : "info");
    if (level < 0)
        return mlo_error_set(err, MLO_EUSAGE, "--log-level cannot be '%s': debug, info, warn or error",
                             level_text);
    mlo_log_setup((enum mlo_log_level)level,
                  format && strcmp(format, "json") == 0 ? MLO_LOG_JSON : MLO_LOG_TEXT, STDERR_FILENO,
                  component);
    return MLO_OK;
}

enum mlo_status mlo_serve_database(const struct mlo_cli *cli, const char **out, struct mlo_error *err)
{
    *out = mlo_cli_opt(cli, "database");
    if (!*out)
        *out = getenv("MLOPT_DATABASE");
    if (*out && **out)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "which database? give --database URL, or set MLOPT_DATABASE");
    mlo_error_hint(err, "for everything on this machine: mlopt up --data DIR");
    return MLO_EUSAGE;
}

static void wanted_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGCHLD);
}

void mlo_serve_block_signals(void)
{
    sigset_t set;
    wanted_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int mlo_serve_wait_signal(uint32_t timeout_ms)
{
    sigset_t set;
    struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    wanted_signals(&set);
    int number = sigtimedwait(&set, NULL, &timeout);
    return number > 0 ? number : 0;
}

static enum mlo_status grace(const struct mlo_cli *cli, int64_t *out_s, struct mlo_error *err)
{
    double days;
    enum mlo_status status = mlo_cli_float(cli, "deletion-grace", MLO_GRACE_S / 86400.0, 1.0 / 24,
                                           MLO_GRACE_MAX_S / 86400.0, &days, err);
    *out_s = status == MLO_OK ? (int64_t)(days * 86400) : 0;
    return status;
}

enum mlo_status mlo_serve_gc(const struct mlo_cli *cli, struct mlo_db *db, struct mlo_blob_store *blobs,
                             struct mlo_gc_service **out, struct mlo_error *err)
{
    struct mlo_gc_service_options options = {.db = db, .blobs = blobs};
    double hours;
    enum mlo_status status = mlo_cli_float(cli, "gc-every", 0, 0, 8784, &hours, err);
    *out = NULL;
    if (status == MLO_OK)
        status = grace(cli, &options.grace_s, err);
    if (status != MLO_OK || hours == 0)
        return status;
    options.every_s = MLO_MAX((int64_t)(hours * 3600), (int64_t)1);
    return mlo_gc_service_start(&options, out, err);
}

/* A connection is a descriptor, and 1,024 of all kinds is what many shells and services begin with. */
static void take_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 ||
        files.rlim_cur >= MLO_MIN(files.rlim_max, (rlim_t)SERVER_FILES_MAX))
        return;
    files.rlim_cur = MLO_MIN(files.rlim_max, (rlim_t)SERVER_FILES_MAX);
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        mlo_log(MLO_LOG_WARN, "cannot raise the limit of open files", "error", strerror(errno), NULL);
}

enum mlo_status mlo_serve_http(const struct mlo_cli *cli, const struct mlo_listen *listen, struct mlo_db *db,
                               struct mlo_blob_store *blobs, struct mlo_ledger *ledger,
                               struct mlo_webhooks *webhooks, bool access_log, struct mlo_http **out,
                               struct mlo_error *err)
{
    struct mlo_http_options options = {
        .address = listen->address,
        .port = listen->port,
        .db = db,
        .blobs = blobs,
        .ledger = ledger,
        .webhooks = webhooks,
        .modules = mlo_web_module(),
        .module_count = 1,
        .quiet = !access_log,
    };
    const char *metrics = mlo_cli_opt(cli, "metrics");
    struct mlo_listen at;
    int64_t projects, rate = 0;
    enum mlo_status status = grace(cli, &options.grace_s, err);
    if (status == MLO_OK)
        status = mlo_cli_int(cli, "metrics-projects", 0, 0, 1000, &projects, err);
    if (status == MLO_OK)
        status = mlo_cli_int(cli, "rate-limit", 0, 0, 1000000, &rate, err);
    if (status == MLO_OK && metrics)
        status = mlo_listen_parse(metrics, &at, err);
    if (status != MLO_OK)
        return status;
    status = mlo_serve_tls(cli, &options.tls_cert, &options.tls_key, err);
    if (status != MLO_OK)
        return status;
    options.metrics_projects = (size_t)projects;
    options.rate_limit = (unsigned)rate;
    if (metrics) {
        options.metrics_address = at.address;
        options.metrics_port = at.port;
    }
    take_descriptors();
    return mlo_http_start(&options, out, err);
}

enum mlo_status mlo_serve_ledger(const struct mlo_cli *cli, struct mlo_db *db, const char *dir,
                                 struct mlo_ledger **out, struct mlo_error *err)
{
    const struct mlo_ledger_options options = {
        .db = db, .dir = dir, .mirror = mlo_cli_opt(cli, "ledger-mirror")};
    enum mlo_status status = mlo_ledger_open(&options, out, err);
    if (status == MLO_ECONFLICT) {
        mlo_log_error(MLO_LOG_WARN, "this server writes no ledgers", err);
        memset(err, 0, sizeof *err);
        return MLO_OK;
    }
    return status == MLO_OK ? mlo_ledger_start(*out, err) : status;
}

enum mlo_status mlo_serve_webhooks(const struct mlo_cli *cli, struct mlo_db *db, struct mlo_webhooks **out,
                                   struct mlo_error *err)
{
    struct mlo_webhooks_options options = {.db = db,
                                           .guard = {.allow_http = mlo_cli_has(cli, "webhook-allow-http")}};
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; status == MLO_OK && mlo_cli_opt_at(cli, "webhook-allow-net", i); i++)
        status = mlo_webhook_guard_allow(&options.guard, mlo_cli_opt_at(cli, "webhook-allow-net", i), err);
    return status == MLO_OK ? mlo_webhooks_start(&options, out, err) : status;
}

static enum mlo_status write_secret(const char *path, const char *text, struct mlo_error *err)
{
    mode_t old = umask(077); /* the temporary file that takes its place is made with this */
    struct mlo_buf line = MLO_BUF_INIT;
    mlo_buf_printf(&line, "%s\n", text);
    enum mlo_status status = mlo_fs_write_atomic(path, line.data, line.len, err);
    umask(old);
    if (status == MLO_OK && chmod(path, 0600) != 0)
        status = mlo_error_set(err, MLO_EIO, "cannot protect %s", path);
    mlo_buf_clear(&line);
    return status;
}

enum mlo_status mlo_serve_admin_token(struct mlo_db *db, const char *path, bool *made, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    struct mlo_db_conn *conn = NULL;
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_principal principal;
    char token[MLO_TOKEN_TEXT_SIZE];
    *made = false;
    MLO_TRY(mlo_db_acquire(db, &conn, err));
    if (mlo_fs_exists(path)) {
        struct mlo_error refused = {0};
        MLO_TRY(mlo_fs_read(path, 4096, &text, err));
        text.data[strcspn(mlo_buf_str(&text), "\r\n")] = '\0';
        enum mlo_status known = mlo_token_check(conn, mlo_buf_str(&text), &principal, &refused);
        if (known != MLO_EAUTH) {
            status = known;
            *err = refused;
            goto out;
        }
    }
    MLO_TRY(mlo_token_create(conn, &actor, "admin", MLO_ADMIN, 0, 0, token, NULL, err));
    MLO_TRY(write_secret(path, token, err));
    *made = true;
out:
    mlo_buf_clear(&text);
    mlo_db_release(conn);
    return status;
}
