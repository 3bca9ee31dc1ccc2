/* The verbs that are the service: up, server, worker, migrate, doctor, backup, restore. */
#ifndef MLO_CLI_SERVE_H
#define MLO_CLI_SERVE_H

#include "api/cli/core/cli.h"
#include "api/http/http.h"
#include "registry/gc_service.h"

extern const struct mlo_cli_verb mlo_verb_up, mlo_verb_server, mlo_verb_worker, mlo_verb_migrate,
    mlo_verb_doctor;
extern const struct mlo_cli_verb mlo_verb_backup, mlo_verb_backup_verify, mlo_verb_restore;

#define MLO_DEFAULT_LISTEN "127.0.0.1:8640"

/* "ADDRESS:PORT", ":PORT", "PORT" or "[::1]:PORT"; an empty address is 127.0.0.1. */
struct mlo_listen {
    char address[64];
    uint16_t port;
};
MLO_MUST_USE enum mlo_status mlo_listen_parse(const char *text, struct mlo_listen *out,
                                              struct mlo_error *err);
/* "http://ADDRESS:PORT" (tls: "https://…"), with a loopback name in place of "any address", into the caller's
 * buffer. */
char *mlo_listen_url(const struct mlo_listen *listen, bool tls, uint16_t port, char *out, size_t size);

/* --tls-cert and --tls-key, or MLOPT_TLS_CERT and MLOPT_TLS_KEY; both or none (then NULL). MLO_EUSAGE: one.
 */
MLO_MUST_USE enum mlo_status mlo_serve_tls(const struct mlo_cli *cli, const char **cert, const char **key,
                                           struct mlo_error *err);
#define MLO_OPTION_TLS                                                                                       \
    {"tls-cert", 0, "FILE", "speak TLS with this certificate in PEM, then its issuers' (MLOPT_TLS_CERT)"},   \
    {                                                                                                        \
        "tls-key", 0, "FILE", "its key in PEM (MLOPT_TLS_KEY); both are read again when they change"         \
    }

/* --log-level and --log-format; `component` is in every line. */
MLO_MUST_USE enum mlo_status mlo_serve_log(const struct mlo_cli *cli, const char *component,
                                           struct mlo_error *err);
#define MLO_OPTION_LOG                                                                                       \
    {"log-level", 0, "LEVEL", "debug, info, warn or error (info)"},                                          \
    {                                                                                                        \
        "log-format", 0, "text|json", "of the log on stderr (text)", mlo_serve_log_formats                   \
    }
extern const char *const mlo_serve_log_formats[];

/* --database or MLOPT_DATABASE; it may hold a password, so the environment is the better place. */
MLO_MUST_USE enum mlo_status mlo_serve_database(const struct mlo_cli *cli, const char **out,
                                                struct mlo_error *err);

/* Blocks the signals that the verb waits for, in this thread and those started later. */
void mlo_serve_block_signals(void);
/* Waits up to timeout_ms for SIGINT, SIGTERM or SIGCHLD; 0 when none came. */
int mlo_serve_wait_signal(uint32_t timeout_ms);

/* Opens the ledgers in `dir` and starts to write them. *out is NULL, with a line in the log, when the
 * installation's key is not there: the server then serves all else. --ledger-mirror is where they are pushed
 * to. */
MLO_MUST_USE enum mlo_status mlo_serve_ledger(const struct mlo_cli *cli, struct mlo_db *db, const char *dir,
                                              struct mlo_ledger **out, struct mlo_error *err);
#define MLO_OPTION_LEDGER_MIRROR                                                                             \
    {                                                                                                        \
        "ledger-mirror", 0, "URL|DIR", "push every ledger to a repository there, PROJECT.git"                \
    }

/* Collects garbage every --gc-every hours; *out is NULL without it. */
MLO_MUST_USE enum mlo_status mlo_serve_gc(const struct mlo_cli *cli, struct mlo_db *db,
                                          struct mlo_blob_store *blobs, struct mlo_gc_service **out,
                                          struct mlo_error *err);
#define MLO_OPTION_GC                                                                                        \
    {"gc-every", 0, "HOURS", "remove the bytes that nothing refers to every so often (0: never)"},           \
    {                                                                                                        \
        "deletion-grace", 0, "DAYS", "how long what was deleted can be brought back (7)"                     \
    }
/* Starts to send webhooks, where --webhook-allow-net and --webhook-allow-http let them go. */
MLO_MUST_USE enum mlo_status mlo_serve_webhooks(const struct mlo_cli *cli, struct mlo_db *db,
                                                struct mlo_webhooks **out, struct mlo_error *err);
#define MLO_OPTION_WEBHOOKS                                                                                  \
    {"webhook-allow-net", 0, "NET", "webhooks may go to this network inside: 10.1.0.0/16", NULL, true},      \
    {                                                                                                        \
        "webhook-allow-http", 0, NULL, "webhooks may go to http:// too"                                      \
    }

#define MLO_OPTION_METRICS                                                                                   \
    {"metrics", 0, "ADDRESS:PORT", "serve /metrics, /healthz and /readyz there too, without a token"},       \
    {                                                                                                        \
        "metrics-projects", 0, "N", "metrics of each of the N busiest projects (0)"                          \
    }

#define MLO_OPTION_RATE                                                                                      \
    {                                                                                                        \
        "rate-limit", 0, "N", "requests a second of one token, ten times as many at once (0: no limit)"      \
    }

/* Starts the HTTP server with the pages. A port that is taken is explained. `ledger` and `webhooks` may be
 * NULL. */
MLO_MUST_USE enum mlo_status mlo_serve_http(const struct mlo_cli *cli, const struct mlo_listen *listen,
                                            struct mlo_db *db, struct mlo_blob_store *blobs,
                                            struct mlo_ledger *ledger, struct mlo_webhooks *webhooks,
                                            bool access_log, struct mlo_http **out, struct mlo_error *err);
/* Writes an admin token to `path` (0600), unless there is one that the database knows. */
MLO_MUST_USE enum mlo_status mlo_serve_admin_token(struct mlo_db *db, const char *path, bool *made,
                                                   struct mlo_error *err);

/* --- the workers of `up`, as child processes --------------------------------------------------- */

struct mlo_brood;
struct mlo_brood_options {
    unsigned count;
    const char *database, *blobs, *work_dir, *log_path; /* copied */
    unsigned threads;
};
/* Starts them; they are in process groups of their own, so that Ctrl-C reaches them through us alone. Call
 * from the main thread: the children end when the thread that started them does. */
MLO_MUST_USE enum mlo_status mlo_brood_start(const struct mlo_brood_options *options, struct mlo_brood **out,
                                             struct mlo_error *err);
/* Reaps those that ended and starts them again, with a backoff. Call after SIGCHLD and at least every second.
 */
void mlo_brood_tend(struct mlo_brood *brood);
/* SIGTERM, then SIGKILL after grace_ms; a second SIGINT or SIGTERM to us shortens it. Frees. NULL is allowed.
 */
void mlo_brood_stop(struct mlo_brood *brood, uint32_t grace_ms);

#endif
