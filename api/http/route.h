/* Routes: the row that describes one, and what a handler works with. Included by the rooms that add routes
 * (the API's own in routes.c, the pages of api/web).
 *
 * A handler reads the request, calls the registry or the service, and answers with one mlo_reply_* call; or
 * it returns a failure, which becomes an RFC 9457 problem (on pages: an error page). Everything that it
 * allocates from req->arena lives as long as the request. */
#ifndef MLO_HTTP_ROUTE_H
#define MLO_HTTP_ROUTE_H

#include "base/base.h"
#include "registry/registry.h"

#define MLO_ROUTE_PARAMS 6
#define MLO_BODY_JSON_MAX ((uint64_t)1 << 20)
#define MLO_BODY_BLOB_MAX ((uint64_t)8 << 30)
#define MLO_BODY_FORM_MAX ((uint64_t)64 << 10)

struct MHD_Connection;
struct mlo_http;
struct mlo_request;
struct mlo_route;

typedef enum mlo_status mlo_handler_fn(struct mlo_request *req, struct mlo_error *err);

/* How a body that is too large for memory is taken in while it arrives. All run on the connection's thread.
 */
struct mlo_upload_body {
    mlo_handler_fn *begin; /* before the first byte: refuses early; sets req->upload */
    enum mlo_status (*data)(struct mlo_request *req, const void *bytes, size_t size, struct mlo_error *err);
    void (*end)(struct mlo_request *req); /* always, also when the connection broke: frees req->upload */
};

enum mlo_route_kind {
    MLO_ROUTE_API,  /* bearer token; failures are problem+json */
    MLO_ROUTE_PAGE, /* session cookie; failures are pages; without a session a GET goes to the sign-in page */
};

/* One row. Paths have literal and {named} segments. */
struct mlo_route {
    const char *method, *path;
    mlo_handler_fn *handler;
    bool open;          /* no sign-in needed */
    bool basic;         /* the token may come as the password of HTTP's Basic scheme, as git sends it */
    enum mlo_role role; /* the least role, when not open */
    bool once;          /* an Idempotency-Key makes it take effect once: all of it is one transaction, so the
                           handler keeps its connection, and what it does outside of the database may be done
                           again. A page's form has its key in the field `key`; a page that answers 4xx keeps
                           nothing */
    bool dry;           /* "dry_run": true in its body has no effect, and no key */
    const char *secret; /* the member of the answer that is shown this once and never kept; NULL: none */
    bool gathered; /* a GET of a version that many ask for all the time: the token and all of the version are
                      read in one round trip with those of other requests (registry/gather.h) */
    bool by_stage; /* it may be had for a stage alone: the registry asks which */
    uint64_t max_body;                    /* bytes; 0: the request has no body */
    const char *docs;                     /* one sentence, for people */
    const struct mlo_upload_body *upload; /* or NULL: the body is collected in req->body */
    enum mlo_route_kind kind;
};

/* Routes that another room brings, and how its failures look. */
struct mlo_http_module {
    const struct mlo_route *routes;
    size_t count;
    /* Answers with a page for `err`; `http_status` is what the status table says. NULL: problem+json. */
    void (*failed)(struct mlo_request *req, const struct mlo_error *err, int http_status);
};

/* An extra header of the answer. */
struct mlo_header {
    const char *name, *value;
    struct mlo_header *next;
};

struct mlo_request {
    struct mlo_http *http;
    struct MHD_Connection *connection;
    const struct mlo_http_module *module;
    const struct mlo_route *route;
    struct mlo_arena *arena;
    const char *method, *path;
    const char *id;                      /* X-Request-Id */
    const char *address;                 /* of the peer, as text */
    const char *param[MLO_ROUTE_PARAMS]; /* the {named} segments, in order */
    struct mlo_principal who;            /* valid when the route is not open */
    const char *token;                   /* the text it signed in with; NULL on open routes */
    struct mlo_buf body;
    void *upload; /* of route->upload */

    /* the answer, filled by mlo_reply_* */
    int status;
    struct mlo_buf out;
    const char *content_type;
    struct mlo_header *headers;
    int file; /* a descriptor to send from, or -1 */
    uint64_t file_offset, file_size;

    struct mlo_db_conn *conn;        /* see mlo_request_db */
    struct mlo_request_state *state; /* the server's */
};

/* --- reading ----------------------------------------------------------------------------------- */

/* A header's or query argument's value; NULL when absent. An argument that is empty counts as absent. */
const char *mlo_request_header(const struct mlo_request *req, const char *name);
const char *mlo_request_query(const struct mlo_request *req, const char *name);
/* A whole number in the query, `fallback` when absent; MLO_EINVAL names the argument. */
MLO_MUST_USE enum mlo_status mlo_request_query_i64(const struct mlo_request *req, const char *name,
                                                   int64_t fallback, int64_t low, int64_t high, int64_t *out,
                                                   struct mlo_error *err);
/* The path's segment `{name}`. Never NULL for a name that the route's path has. */
const char *mlo_request_param(const struct mlo_request *req, const char *name);
/* The body as a JSON object; borrowed, lives as long as the request. */
MLO_MUST_USE enum mlo_status mlo_request_json(struct mlo_request *req, json_t **out, struct mlo_error *err);
/* A field of a form body (urlencoded, decoded); NULL when absent. */
const char *mlo_request_form(struct mlo_request *req, const char *name);
/* A cookie's value; NULL when absent. */
const char *mlo_request_cookie(const struct mlo_request *req, const char *name);
/* The generation in If-Match, as in `"3"`. MLO_EPRECONDITION_REQUIRED when absent. */
MLO_MUST_USE enum mlo_status mlo_request_if_match(const struct mlo_request *req, int64_t *out,
                                                  struct mlo_error *err);

/* A connection to the database, leased at the first call and given back when the handler returns. */
MLO_MUST_USE enum mlo_status mlo_request_db(struct mlo_request *req, struct mlo_db_conn **out,
                                            struct mlo_error *err);
/* Gives it back early: before waiting, and before calling what leases its own. */
void mlo_request_db_release(struct mlo_request *req);
/* Who asks, for the registry; texts live as long as the request. */
struct mlo_actor mlo_request_actor(const struct mlo_request *req);
/* ?cursor= and ?limit=. */
MLO_MUST_USE enum mlo_status mlo_request_page(const struct mlo_request *req, struct mlo_page *out,
                                              struct mlo_error *err);
/* A blob's bytes, as mlo_blob_read: damaged ones are put aside, and that is the failure. */
MLO_MUST_USE enum mlo_status mlo_request_blob(struct mlo_request *req, const struct mlo_digest *digest,
                                              size_t max_bytes, struct mlo_buf *out, struct mlo_error *err);
/* What the segments {p}, {m} and {v} name, for an actor with the route's role there. {v} is a number or
 * `latest`. */
MLO_MUST_USE enum mlo_status mlo_request_project(struct mlo_request *req, int64_t *out,
                                                 struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_request_model(struct mlo_request *req, int64_t *project, int64_t *out,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_request_version(struct mlo_request *req, struct mlo_version_info *out,
                                                 struct mlo_error *err);
/* The member that {p} and {name} name, and what logs call it; `project` and `principal` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_request_member(struct mlo_request *req, int64_t *project, int64_t *out,
                                                char principal[240], struct mlo_error *err);

/* "sha256:…", as the API writes a digest. MLO_EINVAL, for the caller to say where. */
MLO_MUST_USE enum mlo_status mlo_read_digest(const char *text, struct mlo_digest *out, struct mlo_error *err);
/* The digest that {digest} is. MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_request_digest(const struct mlo_request *req, struct mlo_digest *out,
                                                struct mlo_error *err);
/* A deleted one too: for what stays of it. */
MLO_MUST_USE enum mlo_status mlo_request_version_any(struct mlo_request *req, struct mlo_version_info *out,
                                                     struct mlo_error *err);

/* Appends all that is shown of the version that the path names, deleted or not (mlo_version_get), as JSON. */
MLO_MUST_USE enum mlo_status mlo_request_version_read(struct mlo_request *req, struct mlo_buf *out,
                                                      struct mlo_error *err);

/* --- answering --------------------------------------------------------------------------------- */

/* Adds a header (value printf-like). */
void mlo_reply_header(struct mlo_request *req, const char *name, const char *fmt, ...) MLO_PRINTF(3, 4);
/* A JSON answer; takes over `value` (NULL: out of memory, becomes a failure). */
MLO_MUST_USE enum mlo_status mlo_reply_json(struct mlo_request *req, int status, json_t *value,
                                            struct mlo_error *err);
/* An answer of what was appended to req->out. */
MLO_MUST_USE enum mlo_status mlo_reply_out(struct mlo_request *req, int status, const char *content_type,
                                           struct mlo_error *err);
/* The same with 200 and an ETag of its bytes; 304 where If-None-Match has that. For what changes with the
 * program and may be kept. */
MLO_MUST_USE enum mlo_status mlo_reply_tagged(struct mlo_request *req, const char *content_type,
                                              struct mlo_error *err);
/* No body: 204, 304. */
MLO_MUST_USE enum mlo_status mlo_reply_empty(struct mlo_request *req, int status);
/* 303 to a path of this server. */
MLO_MUST_USE enum mlo_status mlo_reply_redirect(struct mlo_request *req, const char *fmt, ...)
    MLO_PRINTF(2, 3);
/* The content of a file, `size` bytes; takes over the descriptor, also on failure. Honours Range and
 * If-None-Match against `etag` (without quotes). */
MLO_MUST_USE enum mlo_status mlo_reply_file(struct mlo_request *req, int fd, uint64_t size, const char *etag,
                                            const char *content_type, struct mlo_error *err);
/* The bytes of a blob, as mlo_reply_file with its digest as the tag. They are checked on the way where the
 * store did not (mlo_blob_open_checked): up to 1 MiB, also for a range of it, before the answer begins
 * (damaged: put aside, and that is the failure), else while the whole goes out. A range of a larger one is
 * not checked. */
MLO_MUST_USE enum mlo_status mlo_reply_blob(struct mlo_request *req, int fd, uint64_t size,
                                            const struct mlo_digest *digest, const char *content_type,
                                            struct mlo_error *err);
/* A blob was read and is damaged: it is put aside, logged and audited, and the failure says so. */
MLO_MUST_USE enum mlo_status mlo_request_damaged(struct mlo_request *req, const struct mlo_digest *digest,
                                                 struct mlo_error *err);
/* Adds a member to the problem that a failure of this request becomes; takes over `value`. */
void mlo_reply_member(struct mlo_request *req, const char *key, json_t *value);
/* What was added so; NULL: nothing. Borrowed. */
const json_t *mlo_reply_members(const struct mlo_request *req);
/* A problem: err by the status table. What the core does with a handler's failure on API routes. */
void mlo_reply_problem(struct mlo_request *req, const struct mlo_error *err);

/* The same of one item among many, as a member of an answer: without a request_id. Yours; NULL: no memory. */
json_t *mlo_problem_json(const struct mlo_error *err);

/* --- the server -------------------------------------------------------------------------------- */

/* The registry and the rest that the program started the server with. */
const struct mlo_http_options *mlo_http_options(const struct mlo_http *http);
/* True once it is to end, and other servers are to be asked. */
bool mlo_http_draining(const struct mlo_http *http);
/* True once a stop was asked for: whoever waits for something must come to an end. */
bool mlo_http_stopping(const struct mlo_http *http);
/* Exchanges a one-time sign-in code for the token it stands for (a copy in the request's arena); NULL when
 * the code is unknown or used. */
const char *mlo_http_redeem(struct mlo_request *req, const char *code);
/* Checks a token; fills `who`. For the sign-in page. */
MLO_MUST_USE enum mlo_status mlo_http_identify(struct mlo_request *req, const char *token,
                                               struct mlo_principal *who, struct mlo_error *err);

/* Checks a table: rows complete, paths well-formed, no two rows for the same requests. */
MLO_MUST_USE enum mlo_status mlo_route_table_check(const struct mlo_http_module *modules, size_t count,
                                                   struct mlo_error *err);

/* The cookie that holds a page session. */
#define MLO_SESSION_COOKIE "mlopt_session"

#endif
