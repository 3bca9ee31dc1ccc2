/* A real HTTP server that receives webhooks, and a project with one. */
#ifndef MLO_TESTS_WEBHOOK_FIXTURE_H
#define MLO_TESTS_WEBHOOK_FIXTURE_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "ledger_fixture.h"

#define PATIENCE_S 120 /* for what takes a moment where the machine has nothing else to do */

/* --- the receiver -------------------------------------------------------------------------------- */

enum { CALLS_MAX = 256 };

struct call {
    char path[64], id[64], timestamp[24], signature[256], body[8192];
};

static struct {
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t released;
    bool broken, held; /* /flaky answers 500; /hold answers nothing yet */
    struct call calls[CALLS_MAX];
    size_t count;
} receiver = {.lock = PTHREAD_MUTEX_INITIALIZER, .released = PTHREAD_COND_INITIALIZER};

static inline void keep_header(char *to, size_t size, struct MHD_Connection *c, const char *name)
{
    const char *value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
    snprintf(to, size, "%s", value ? value : "");
}

static inline enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url,
                                         const char *method, const char *version, const char *data,
                                         size_t *size, void **state)
{
    struct mlo_buf *body = *state;
    int code = 200;
    MLO_UNUSED(arg), MLO_UNUSED(method), MLO_UNUSED(version);
    if (!body) {
        *state = calloc(1, sizeof *body);
        return MHD_YES;
    }
    if (*size) {
        mlo_buf_append(body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&receiver.lock);
    if (receiver.count < CALLS_MAX) {
        struct call *call = &receiver.calls[receiver.count++];
        snprintf(call->path, sizeof call->path, "%s", url);
        keep_header(call->id, sizeof call->id, c, "webhook-id");
        keep_header(call->timestamp, sizeof call->timestamp, c, "webhook-timestamp");
        keep_header(call->signature, sizeof call->signature, c, "webhook-signature");
        snprintf(call->body, sizeof call->body, "%s", mlo_buf_str(body));
    }
    while (strcmp(url, "/hold") == 0 && receiver.held)
        pthread_cond_wait(&receiver.released, &receiver.lock);
    if (strcmp(url, "/flaky") == 0 && receiver.broken)
        code = 500;
    pthread_mutex_unlock(&receiver.lock);
    if (strcmp(url, "/gone") == 0)
        code = 410;
    struct MHD_Response *response = MHD_create_response_from_buffer(2, "ok", MHD_RESPMEM_PERSISTENT);
    if (strcmp(url, "/redirect") == 0) {
        code = 302;
        MHD_add_response_header(response, "Location", "/elsewhere");
    }
    enum MHD_Result result = MHD_queue_response(c, (unsigned)code, response);
    MHD_destroy_response(response);
    return result;
}

static inline void on_end(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_RequestTerminationCode why)
{
    MLO_UNUSED(arg), MLO_UNUSED(c), MLO_UNUSED(why);
    if (*state)
        mlo_buf_clear(*state);
    free(*state);
}

static inline int webhook_group_start(void **state)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    receiver.daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION, 0, NULL, NULL,
                         on_request, NULL, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&here,
                         MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
    if (!receiver.daemon)
        return -1;
    receiver.port = MHD_get_daemon_info(receiver.daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "test");
    return pg_fixture_start(state);
}

static inline void set_receiver(bool broken, bool held)
{
    pthread_mutex_lock(&receiver.lock);
    receiver.broken = broken;
    receiver.held = held;
    pthread_cond_broadcast(&receiver.released);
    pthread_mutex_unlock(&receiver.lock);
}

static inline int webhook_group_stop(void **state)
{
    set_receiver(false, false);
    MHD_stop_daemon(receiver.daemon);
    return pg_fixture_stop(state);
}

/* How many calls there were on this path (NULL: on any), and the last of them. */
static inline size_t calls_on(const char *path, struct call *last)
{
    size_t n = 0;
    pthread_mutex_lock(&receiver.lock);
    for (size_t i = 0; i < receiver.count; i++)
        if (!path || strcmp(receiver.calls[i].path, path) == 0) {
            n++;
            if (last)
                *last = receiver.calls[i];
        }
    pthread_mutex_unlock(&receiver.lock);
    return n;
}

/* --- the project, the webhook, the sender --------------------------------------------------------- */

struct hooks {
    struct pg_fixture *f;
    struct shop shop;
    struct mlo_webhooks *sender;
    char secret[MLO_WEBHOOK_SECRET_SIZE];
    int64_t id;
};

static inline struct mlo_webhook_guard loopback(void)
{
    struct mlo_webhook_guard guard = {.allow_http = true};
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_webhook_guard_allow(&guard, "127.0.0.0/8", &err), &err);
    return guard;
}

static inline struct mlo_webhooks *sender(struct pg_fixture *f, const struct mlo_webhooks_options *more)
{
    struct mlo_webhooks_options o = *more;
    struct mlo_webhooks *w;
    o.db = f->server;
    o.poll_ms = 20;
    assert_mlo_ok(mlo_webhooks_start(&o, &w, &f->err), &f->err);
    return w;
}

static inline int64_t add_hook(struct hooks *h, const char *host, const char *path, const char *event)
{
    const struct mlo_webhook_guard guard = loopback();
    char url[160];
    json_t *webhook;
    snprintf(url, sizeof url, "http://%s:%u%s", host, receiver.port, path);
    const struct mlo_webhook_settings settings = {
        .url = url, .events = event ? &event : NULL, .event_count = event ? 1 : 0};
    assert_mlo_ok(mlo_webhook_create(h->f->conn, &root, &guard, h->shop.project_id, &settings, h->secret,
                                     &webhook, &h->f->err),
                  &h->f->err);
    int64_t id = mlo_json_i64(webhook, "id", 0);
    json_decref(webhook);
    return id;
}

/* A project with a webhook of this path; nothing is sent yet. */
static inline struct hooks hooks_open(void **state, const char *path)
{
    struct hooks h = {.f = *state};
    pthread_mutex_lock(&receiver.lock);
    receiver.count = 0;
    pthread_mutex_unlock(&receiver.lock);
    set_receiver(false, false);
    h.shop = shop_open(h.f);
    h.id = add_hook(&h, "127.0.0.1", path, "stage.promote");
    return h;
}

static inline void hooks_start(struct hooks *h)
{
    const struct mlo_webhooks_options o = {.guard = loopback()};
    h->sender = sender(h->f, &o);
}

static inline void hooks_close(struct hooks *h)
{
    set_receiver(false, false);
    mlo_webhooks_stop(h->sender);
    shop_close(&h->shop);
}

static inline int64_t number(struct hooks *h, const char *sql)
{
    return pg_fixture_number(h->f->owner, sql);
}

#define wait_for(condition)                                                                                  \
    do {                                                                                                     \
        uint64_t begin_ns_ = mlo_clock_ns();                                                                 \
        while (!(condition)) {                                                                               \
            if (mlo_clock_ns() - begin_ns_ > PATIENCE_S * 1000000000ull)                                     \
                fail_msg("not within %d s: %s", PATIENCE_S, #condition);                                     \
            mlo_clock_sleep_ms(10);                                                                          \
        }                                                                                                    \
    } while (0)

#define DELIVERED "select count(*) from mlopt.webhook_delivery where state = 'delivered'"

#endif
