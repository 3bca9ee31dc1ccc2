/* /metrics: to tokens of all projects at the server's address, and to everybody at one of its own, which is
 * for the inside of a cluster and goes on when there is no database to look a token up in. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "api/http/handlers_impl.h"

const char *mlo_http_metrics(struct mlo_http *http, const char *accept, struct mlo_buf *out)
{
    struct mlo_metrics m = {.out = out, .openmetrics = mlo_metrics_accept(accept)};
    mlo_metrics_family(&m, MLO_METRIC_INFO, "mlopt_build_info", "The program of this server.");
    mlo_metrics_value(&m, 1, "version", MLO_VERSION_TEXT, NULL);
    mlo_metrics_process(&m, "process_");
    mlo_traffic_write(http, &m);
    mlo_service_metrics_write(http->metrics, &m);
    mlo_metrics_end(&m);
    return m.openmetrics ? MLO_METRICS_OPENMETRICS : MLO_METRICS_TEXT;
}

enum mlo_status h_metrics(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    enum mlo_status status = mlo_actor_require(&actor, 0, MLO_VIEWER, err);
    if (status != MLO_OK)
        return status;
    mlo_reply_header(req, "Vary", "Accept");
    return mlo_reply_out(req, 200, mlo_http_metrics(req->http, mlo_request_header(req, "Accept"), &req->out),
                         err);
}

/* --- the address of their own -------------------------------------------------------------------- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              struct mlo_buf *body)
{
    size_t size = body->len;
    char *text = mlo_buf_ok(body) ? mlo_buf_take(body) : NULL;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text ? size : 0, text, text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    enum MHD_Result result = MHD_queue_response(connection, text ? status : 500, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result serve(void *cls, struct MHD_Connection *connection, const char *url,
                             const char *method, const char *version, const char *body, size_t *body_size,
                             void **state)
{
    static char seen;
    struct mlo_http *http = cls;
    struct mlo_buf out = MLO_BUF_INIT;
    const char *type = "application/json";
    unsigned status = 200;
    MLO_UNUSED(version);
    MLO_UNUSED(body);
    if (!*state) { /* never an answer in the first call: the connection would be closed */
        *state = &seen;
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 ? MHD_YES : MHD_NO;
    }
    if (*body_size) {
        *body_size = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/metrics") == 0) {
        type = mlo_http_metrics(
            http, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT), &out);
    } else if (strcmp(url, "/readyz") == 0) {
        bool ready;
        char why[160];
        json_t *value = mlo_readiness_json(http, &ready, why);
        mlo_json_canonical(value, &out);
        json_decref(value);
        status = ready ? 200 : 503;
    } else if (strcmp(url, "/healthz") == 0) {
        mlo_buf_puts(&out, "{\"status\":\"ok\"}");
    } else {
        mlo_buf_puts(&out, "{\"status\":404,\"detail\":\"there is /metrics, /healthz and /readyz here\"}");
        status = 404;
    }
    return answer(connection, status, type, &out);
}

enum mlo_status mlo_http_metrics_listen(struct mlo_http *http, struct mlo_error *err)
{
    const struct mlo_http_options *o = &http->options;
    struct sockaddr_storage address;
    enum mlo_status status = mlo_http_address(o->metrics_address, o->metrics_port, &address, err);
    if (status != MLO_OK)
        return status;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
                     (address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    errno = 0;
    http->metrics_daemon =
        MHD_start_daemon(flags, o->metrics_port, NULL, NULL, serve, http, MHD_OPTION_SOCK_ADDR,
                         (struct sockaddr *)&address, MHD_OPTION_CONNECTION_TIMEOUT, 30u,
                         MHD_OPTION_CONNECTION_LIMIT, 16u, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)32 << 10, MHD_OPTION_THREAD_STACK_SIZE, (size_t)2 << 20, MHD_OPTION_END);
    if (!http->metrics_daemon) {
        mlo_error_set(err, MLO_EUNAVAILABLE, "cannot listen for metrics on %s port %u: %s",
                      o->metrics_address, o->metrics_port, errno ? strerror(errno) : "unknown reason");
        mlo_error_hint(err, "choose another address with --metrics");
        return MLO_EUNAVAILABLE;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->metrics_daemon, MHD_DAEMON_INFO_BIND_PORT);
    http->metrics_port = info ? info->port : o->metrics_port;
    return MLO_OK;
}
