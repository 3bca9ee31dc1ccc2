/* The daemon: start, stop, and the reaper that cuts connections that are too slow. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http/http_impl.h"
#include "base/periodic.h"

#define REAP_EVERY_MS 250
#define RATE_WINDOW_NS 5000000000ULL

static void connection_changed(void *cls, struct MHD_Connection *connection, void **socket_context,
                               enum MHD_ConnectionNotificationCode code)
{
    struct mlo_http *http = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct mlo_connection *entry = calloc(1, sizeof *entry);
        if (!entry || !info) {
            free(entry);
            return;
        }
        entry->fd = info->connect_fd;
        atomic_store(&entry->headers_due_ns,
                     mlo_clock_ns() + (uint64_t)http->options.header_timeout_ms * 1000000);
        pthread_mutex_lock(&http->lock);
        entry->next = http->connections;
        if (entry->next)
            entry->next->previous = entry;
        http->connections = entry;
        pthread_mutex_unlock(&http->lock);
        *socket_context = entry;
        return;
    }
    struct mlo_connection *entry = *socket_context;
    if (!entry)
        return;
    pthread_mutex_lock(&http->lock);
    if (entry->previous)
        entry->previous->next = entry->next;
    else
        http->connections = entry->next;
    if (entry->next)
        entry->next->previous = entry->previous;
    pthread_mutex_unlock(&http->lock);
    free(entry);
    *socket_context = NULL;
}

struct mlo_connection *mlo_connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static bool too_slow(struct mlo_http *http, struct mlo_connection *entry, uint64_t now)
{
    uint64_t due = atomic_load(&entry->headers_due_ns);
    if (due && now > due)
        return true;
    if (!atomic_load(&entry->receiving)) {
        entry->checked_ns = 0;
        return false;
    }
    uint64_t received = atomic_load(&entry->received);
    if (!entry->checked_ns) {
        entry->checked_ns = now;
        entry->checked_received = received;
    } else if (now - entry->checked_ns >= RATE_WINDOW_NS) {
        uint64_t least = http->options.min_body_rate * ((now - entry->checked_ns) / 1000000) / 1000;
        if (received - entry->checked_received < least)
            return true;
        entry->checked_ns = now;
        entry->checked_received = received;
    }
    return false;
}

static void *reap(void *arg)
{
    struct mlo_http *http = arg;
    while (!atomic_load(&http->stopping)) {
        mlo_clock_sleep_ms(REAP_EVERY_MS);
        uint64_t now = mlo_clock_ns();
        pthread_mutex_lock(&http->lock);
        for (struct mlo_connection *entry = http->connections; entry; entry = entry->next)
            if (too_slow(http, entry, now))
                shutdown(entry->fd, SHUT_RDWR);
        pthread_mutex_unlock(&http->lock);
        if (http->tls)
            mlo_tls_refresh(http->tls);
    }
    return NULL;
}

enum mlo_status mlo_http_address(const char *address, uint16_t port, struct sockaddr_storage *out,
                                 struct mlo_error *err)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    } else {
        mlo_error_set(err, MLO_EINVAL, "'%s' is not an IP address to listen on", address);
        mlo_error_hint(err, "use 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

static enum mlo_status take_modules(struct mlo_http *http, struct mlo_error *err)
{
    const struct mlo_http_options *options = &http->options;
    http->module_count = options->module_count + 1;
    http->modules = calloc(http->module_count, sizeof *http->modules);
    if (!http->modules)
        return mlo_error_nomem(err);
    http->modules[0].routes = mlo_http_api_routes(&http->modules[0].count);
    for (size_t i = 0; i < options->module_count; i++)
        http->modules[i + 1] = options->modules[i];
    return mlo_route_table_check(http->modules, http->module_count, err);
}

/* %00 stays as it was written: decoded it would cut the path, or the argument, short. */
static size_t unescape(void *cls, struct MHD_Connection *connection, char *text)
{
    MLO_UNUSED(cls);
    MLO_UNUSED(connection);
    if (strstr(text, "%00"))
        return strlen(text);
    return MHD_http_unescape(text);
}

/* What a connection reads into. The library zeroes half of it when a request's headers are in, and all of it
 * behind a request: that is time of each, and memory of each open one (with 256 KiB a thousand streams of
 * events had 192 MB). Uploads gain little by more, and lose as little by 32 KiB (docs/performance.md). */
#define CONNECTION_BYTES ((size_t)64 << 10)

static enum mlo_status listen_on(struct mlo_http *http, struct mlo_error *err)
{
    struct sockaddr_storage address;
    enum mlo_status status = mlo_http_address(http->options.address, http->options.port, &address, err);
    if (status != MLO_OK)
        return status;
    unsigned flags =
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC;
    if (address.ss_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    struct MHD_OptionItem secure[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)mlo_tls_priorities},
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, mlo_tls_callback()},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem *more = &secure[MLO_COUNT(secure) - 1];
    if (http->tls) {
        flags |= MHD_USE_TLS;
        more = secure;
    }
#ifdef MLOPT_SANITIZED
    size_t stack_size = (size_t)2 << 20; /* red zones make frames several times larger */
#else
    size_t stack_size = (size_t)512 << 10;
#endif
    errno = 0;
    http->daemon = MHD_start_daemon(
        flags, http->options.port, NULL, NULL, mlo_request_callback, http, MHD_OPTION_SOCK_ADDR,
        (struct sockaddr *)&address, MHD_OPTION_NOTIFY_COMPLETED, mlo_request_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, connection_changed, http, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)http->options.idle_timeout_s, MHD_OPTION_CONNECTION_LIMIT, http->options.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES, MHD_OPTION_THREAD_STACK_SIZE, stack_size,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
    if (!http->daemon) {
        mlo_error_set(err, MLO_EUNAVAILABLE, "cannot listen on %s port %u: %s", http->options.address,
                      http->options.port, errno ? strerror(errno) : "unknown reason");
        mlo_error_hint(err, "choose another port, or stop the program that uses it");
        return MLO_EUNAVAILABLE;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    http->port = info ? info->port : http->options.port;
    return MLO_OK;
}

enum mlo_status mlo_http_start(const struct mlo_http_options *options, struct mlo_http **out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_http *http = calloc(1, sizeof *http);
    *out = NULL;
    if (!http)
        return mlo_error_nomem(err);
    http->options = *options;
    pthread_mutex_init(&http->lock, NULL);
    struct mlo_http_options *own = &http->options;
    own->address = options->address ? options->address : "127.0.0.1";
    own->max_connections = options->max_connections ? options->max_connections : 1024;
    own->header_timeout_ms = options->header_timeout_ms ? options->header_timeout_ms : 5000;
    own->idle_timeout_s = options->idle_timeout_s ? options->idle_timeout_s : 30;
    own->min_body_rate = options->min_body_rate ? options->min_body_rate : 1024;
    own->max_blob_bytes = options->max_blob_bytes ? options->max_blob_bytes : MLO_BODY_BLOB_MAX;
    own->keys_every_ms = options->keys_every_ms ? options->keys_every_ms : 600000;
    MLO_TRY(take_modules(http, err));
    if (own->tls_cert) {
        MLO_TRY(mlo_tls_open(own->tls_cert, own->tls_key, &http->tls, err));
        own->secure_cookie = true;
    }
    if (pthread_create(&http->reaper, NULL, reap, http) != 0) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start a thread");
        goto out;
    }
    http->reaper_started = true;
    if (own->rate_limit)
        MLO_TRY(mlo_rate_new(own->rate_limit, &http->rate, err));
    MLO_TRY(mlo_traffic_new(http, &http->traffic, err));
    MLO_TRY(mlo_gather_new(own->db, &http->gather, err));
    MLO_TRY(mlo_service_metrics_new(own->db, own->metrics_projects, &http->metrics, err));
    MLO_TRY(mlo_readiness_start(http, &http->readiness, err));
    MLO_TRY(mlo_keys_start(http, err));
    MLO_TRY(listen_on(http, err));
    if (own->metrics_address) /* it shows the daemon's connections: begins after it, ends before it */
        MLO_TRY(mlo_http_metrics_listen(http, err));
    own->metrics_address = NULL;
    own->address = own->tls_cert = own->tls_key = NULL; /* the caller's; not needed any more */
    *out = http;
    http = NULL;
out:
    mlo_http_stop(http, 0);
    return status;
}

static unsigned connections_now(struct mlo_http *http)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info ? info->num_connections : 0;
}

/* A request that lies there unread is one in flight. */
static bool has_more(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void close_idle(struct mlo_http *http)
{
    pthread_mutex_lock(&http->lock);
    for (struct mlo_connection *entry = http->connections; entry; entry = entry->next)
        if (!atomic_load(&entry->busy) && !has_more(entry->fd))
            shutdown(entry->fd, SHUT_RDWR);
    pthread_mutex_unlock(&http->lock);
}

void mlo_http_drain(struct mlo_http *http)
{
    atomic_store(&http->draining, true);
}

void mlo_http_stop(struct mlo_http *http, uint32_t drain_ms)
{
    if (!http)
        return;
    mlo_http_drain(http);
    atomic_store(&http->stopping, true);
    if (http->daemon) {
        MHD_socket listener = MHD_quiesce_daemon(http->daemon);
        if (listener != MHD_INVALID_SOCKET)
            close(listener);
        uint64_t until = mlo_clock_ns() + (uint64_t)drain_ms * 1000000;
        do {
            close_idle(http);
            if (!connections_now(http))
                break;
            mlo_clock_sleep_ms(5);
        } while (mlo_clock_ns() < until);
    }
    if (http->metrics_daemon) /* asked while requests end; it reads what is freed next */
        MHD_stop_daemon(http->metrics_daemon);
    if (http->daemon)
        MHD_stop_daemon(http->daemon);
    if (http->reaper_started)
        pthread_join(http->reaper, NULL);
    mlo_periodic_stop(http->keys);
    mlo_readiness_stop(http->readiness);
    mlo_service_metrics_free(http->metrics);
    mlo_gather_free(http->gather);
    mlo_traffic_free(http->traffic);
    mlo_rate_free(http->rate);
    mlo_tls_close(http->tls);
    for (size_t i = 0; i < MLO_LOGIN_CODES; i++)
        free(http->codes[i].token);
    pthread_mutex_destroy(&http->lock);
    free(http->modules);
    free(http);
}

uint16_t mlo_http_port(const struct mlo_http *http)
{
    return http->port;
}

bool mlo_http_tls(const struct mlo_http *http)
{
    return http->tls != NULL;
}

uint16_t mlo_http_metrics_port(const struct mlo_http *http)
{
    return http->metrics_port;
}

const struct mlo_http_options *mlo_http_options(const struct mlo_http *http)
{
    return &http->options;
}

bool mlo_http_draining(const struct mlo_http *http)
{
    return atomic_load(&http->draining);
}

bool mlo_http_stopping(const struct mlo_http *http)
{
    return atomic_load(&http->stopping);
}
