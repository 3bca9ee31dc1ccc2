/* Inside api/http. */
#ifndef MLO_HTTP_IMPL_H
#define MLO_HTTP_IMPL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/http/http.h"
#include "api/http/tls.h"
#include "registry/together.h"

#define MLO_LOGIN_CODES 16
#define MLO_STREAMS_PER_TOKEN 64 /* open at a time, at one server */

/* A connection, as the reaper sees it. The socket is only ever shut down here, never closed. */
struct mlo_connection {
    int fd;
    struct mlo_connection *next, *previous;
    _Atomic uint64_t headers_due_ns; /* 0: the headers of a request are in */
    _Atomic bool receiving;          /* a body is expected and our own code is not holding it up */
    _Atomic uint64_t received;
    uint64_t checked_ns, checked_received; /* the reaper's own */
    _Atomic bool busy;                     /* a request is being served */
};

struct mlo_login_code {
    struct mlo_digest digest; /* of the code: the code itself is not kept */
    char *token;
};

struct mlo_readiness;
struct mlo_traffic;
struct mlo_rate;
struct mlo_stream;

struct mlo_http {
    struct mlo_http_options options;
    struct mlo_readiness *readiness;
    struct mlo_periodic *keys; /* removes Idempotency-Keys whose time is over */
    struct mlo_traffic *traffic;
    struct mlo_rate *rate; /* NULL: no limit */
    struct mlo_tls *tls;   /* NULL: plain HTTP */
    struct mlo_gather *gather;
    struct mlo_service_metrics *metrics;
    struct MHD_Daemon *metrics_daemon; /* of the address for metrics alone, or NULL */
    uint16_t metrics_port;
    struct mlo_http_module *modules; /* the API first, then the options' */
    size_t module_count;
    struct MHD_Daemon *_Atomic daemon; /* requests may come before it is known here */
    uint16_t port;
    _Atomic bool draining; /* another server is to be asked: set before `stopping` */
    _Atomic bool stopping;
    pthread_mutex_t lock; /* connections, codes, streams */
    struct mlo_connection *connections;
    struct mlo_login_code codes[MLO_LOGIN_CODES];
    size_t next_code;
    struct mlo_stream *streams;        /* run_stream.c's, those that are open */
    uint64_t streams_looked_ns;        /* when one of them looked for all */
    uint64_t streams_counted_ns;       /* when what their runs' steps wrote was counted, too */
    struct mlo_stream *streams_looker; /* the one that does */
    pthread_t reaper;
    bool reaper_started;
};

/* What is asked together with other requests. */
enum { MLO_ASK_TOKEN, MLO_ASK_VERSION, MLO_ASKS };

struct mlo_request_state {
    bool refused; /* an answer was made before the body: what still arrives is dropped */
    bool upload_begun;
    bool bodiless; /* nothing follows the headers */
    bool queued;
    uint64_t started_ns, body_size, dropped_size, sent_size;
    json_t *members; /* of a problem; NULL: none */
    json_t *json;    /* the parsed body */
    bool json_parsed;
    bool form_parsed;
    char *form; /* decoded fields: name NUL value NUL … */
    size_t form_size;
    struct MHD_Response *response; /* in place of req->out and req->file; NULL: none */
    bool checks;                   /* req->file is a whole blob that nobody has checked yet */
    struct mlo_digest digest;      /* of it */
    bool gathered;                 /* `asks` were answered */
    struct mlo_gather_ask asks[MLO_ASKS];
    struct mlo_token_question token;
    char number[24];
};

/* ready.c: what /readyz says. It is looked at by a thread of its own, when somebody asks and the last look is
 * older than a second, so that an answer takes MLO_READY_WITHIN_MS at most and asking often is no load. */
#define MLO_READY_WITHIN_MS 2000
MLO_MUST_USE enum mlo_status mlo_readiness_start(struct mlo_http *http, struct mlo_readiness **out,
                                                 struct mlo_error *err);
void mlo_readiness_stop(struct mlo_readiness *readiness); /* NULL is allowed */
/* {"status","checks":[{"name","ok","ms","code"?}]}; yours. *ready: all of them hold. NULL: no memory. */
json_t *mlo_readiness_json(struct mlo_http *http, bool *ready, char why[160]);

/* traffic.c: requests by route, counted in this process, without a lock. */
MLO_MUST_USE enum mlo_status mlo_traffic_new(const struct mlo_http *http, struct mlo_traffic **out,
                                             struct mlo_error *err);
void mlo_traffic_free(struct mlo_traffic *traffic); /* NULL is allowed */
void mlo_traffic_count(struct mlo_http *http, const struct mlo_request *req, bool whole);
void mlo_traffic_write(const struct mlo_http *http, struct mlo_metrics *out);

/* rate.c: how many requests a token may make. */
MLO_MUST_USE enum mlo_status mlo_rate_new(unsigned per_second, struct mlo_rate **out, struct mlo_error *err);
void mlo_rate_free(struct mlo_rate *rate); /* NULL is allowed */
/* Counts a request. False: it is one too many, and *wait_s says when to come again, at least 1. `rate` may be
 * NULL: there is no limit. */
bool mlo_rate_take(struct mlo_rate *rate, int64_t token, uint64_t now_ns, unsigned *wait_s);

/* gzip.c: makes req->out smaller where that is worth it and the client takes it, and says so in headers. */
void mlo_http_gzip(struct mlo_request *req);

/* server.c: where to listen. */
struct sockaddr_storage;
MLO_MUST_USE enum mlo_status mlo_http_address(const char *address, uint16_t port,
                                              struct sockaddr_storage *out, struct mlo_error *err);

/* metrics.c: all metrics of this server, by what an Accept header asks for. The content type. */
const char *mlo_http_metrics(struct mlo_http *http, const char *accept, struct mlo_buf *out);
/* Serves /metrics, /healthz and /readyz at an address of their own, without tokens. */
MLO_MUST_USE enum mlo_status mlo_http_metrics_listen(struct mlo_http *http, struct mlo_error *err);

/* request.c: the callbacks of the daemon */
enum MHD_Result mlo_request_callback(void *cls, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *upload_data,
                                     size_t *upload_data_size, void **con_cls);
void mlo_request_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                           enum MHD_RequestTerminationCode code);
struct mlo_connection *mlo_connection_of(struct MHD_Connection *connection);

/* match.c: the row for a request, its parameters. NULL when none; then *allow lists the methods that the path
 * has (an arena string, "" for none). */
const struct mlo_route *mlo_route_match(const struct mlo_http *http, struct mlo_request *req,
                                        const char **allow);

/* once.c: runs the row's handler. Under an Idempotency-Key, where the row takes one: in one transaction with
 * the answer, or not at all where that request was answered before. */
MLO_MUST_USE enum mlo_status mlo_request_handle(struct mlo_request *req, struct mlo_error *err);
/* Removes keys whose time is over now and then, all of them: http->keys. */
MLO_MUST_USE enum mlo_status mlo_keys_start(struct mlo_http *http, struct mlo_error *err);

/* auth.c: who it is, and whether the row allows it. */
MLO_MUST_USE enum mlo_status mlo_request_authorize(struct mlo_request *req, struct mlo_error *err);

/* names.c: reads ahead (mlo_db_ahead) what the path of a request names, where the next statement that is
 * waited for is sure to come. Nothing of it is told before who asks is known. */
MLO_MUST_USE enum mlo_status mlo_names_ahead(struct mlo_request *req, struct mlo_db_conn *conn,
                                             struct mlo_error *err);
/* For a row that is `gathered`: the question of the version that the path names. False: it names none. */
bool mlo_names_ask(struct mlo_request *req, struct mlo_gather_ask *out);

/* reply.c: an error that only HTTP knows (405, 415, 416), as a problem; hint "": none. */
void mlo_reply_http_problem(struct mlo_request *req, int status, const char *code, const char *title,
                            const char *detail, const char *hint);
/* 429: the token made too many requests; the next may come after wait_s. */
void mlo_reply_too_many(struct mlo_request *req, unsigned wait_s);
/* A problem with a code that HTTP alone has, and words of `err`. */
void mlo_reply_coded_problem(struct mlo_request *req, int status, const char *code, const char *title,
                             bool retry, const struct mlo_error *err);
/* 429: the token has as many streams open as it may. */
void mlo_reply_too_many_streams(struct mlo_request *req, unsigned wait_s);
/* blob_body.c: req->file as a body that is hashed while it goes out. Its last piece follows only when the
 * digest is right; else the blob is put aside and the connection cut, so that nobody takes it for whole.
 * Takes over the descriptor; NULL: no memory. */
struct MHD_Response *mlo_blob_body(struct mlo_request *req);
/* Forgets an answer that was begun. */
void mlo_reply_reset(struct mlo_request *req);

#endif
