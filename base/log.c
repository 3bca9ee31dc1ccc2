#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

static const char *const LEVELS[] = {"debug", "info", "warn", "error"};

static struct {
    enum mlo_log_level level;
    enum mlo_log_format format;
    int fd;
    char component[24];
} g_log = {MLO_LOG_INFO, MLO_LOG_TEXT, 2, "mlopt"};

void mlo_log_setup(enum mlo_log_level level, enum mlo_log_format format, int fd, const char *component)
{
    g_log.level = level;
    g_log.format = format;
    g_log.fd = fd;
    snprintf(g_log.component, sizeof g_log.component, "%s", component);
}

int mlo_log_level_parse(const char *text)
{
    for (size_t i = 0; i < MLO_COUNT(LEVELS); i++)
        if (strcmp(LEVELS[i], text) == 0)
            return (int)i;
    return -1;
}

static void put_json_string(struct mlo_buf *line, const char *text)
{
    json_t *s = json_string(text); /* NULL for bytes that are not UTF-8 */
    if (s)
        mlo_json_canonical(s, line);
    else
        mlo_buf_puts(line, "\"(not UTF-8)\"");
    json_decref(s);
}

static void put_text_value(struct mlo_buf *line, const char *text)
{
    bool plain = *text != '\0';
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == '"' || *p == '=')
            plain = false;
    if (plain)
        mlo_buf_puts(line, text);
    else
        put_json_string(line, text);
}

static void put_field(struct mlo_buf *line, const char *key, const char *value)
{
    if (!value)
        value = "-";
    if (g_log.format == MLO_LOG_JSON) {
        mlo_buf_putc(line, ',');
        put_json_string(line, key);
        mlo_buf_putc(line, ':');
        put_json_string(line, value);
    } else {
        mlo_buf_printf(line, " %s=", key);
        put_text_value(line, value);
    }
}

void mlo_log(enum mlo_log_level level, const char *event, ...)
{
    if (level < g_log.level)
        return;
    char stamp[32];
    struct mlo_buf line = MLO_BUF_INIT;
    mlo_clock_format(mlo_clock_utc_us(), stamp);
    if (g_log.format == MLO_LOG_JSON) {
        mlo_buf_printf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"component\":", stamp, LEVELS[level]);
        put_json_string(&line, g_log.component);
        mlo_buf_puts(&line, ",\"event\":");
        put_json_string(&line, event);
    } else {
        mlo_buf_printf(&line, "%s %-5s %s: %s", stamp, LEVELS[level], g_log.component, event);
    }
    va_list args;
    va_start(args, event);
    for (const char *key; (key = va_arg(args, const char *));)
        put_field(&line, key, va_arg(args, const char *));
    va_end(args);
    mlo_buf_puts(&line, g_log.format == MLO_LOG_JSON ? "}\n" : "\n");
    if (mlo_buf_ok(&line) && write(g_log.fd, line.data, line.len) < 0) {
        /* nowhere is left to say it */
    }
    mlo_buf_clear(&line);
}

void mlo_log_error(enum mlo_log_level level, const char *event, const struct mlo_error *error)
{
    mlo_log(level, event, "code", mlo_status_info(error->status)->code, "error", error->message, "where",
            error->where[0] ? error->where : "-", "hint", error->hint[0] ? error->hint : "-", NULL);
}
