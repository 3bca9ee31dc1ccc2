#include "api/html/html.h"

#include <stdio.h>
#include <string.h>

void mlo_html_escape(struct mlo_buf *out, const char *text)
{
    static const char special[] = "&<>\"'";
    static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    if (!text)
        return;
    for (;;) {
        size_t plain = strcspn(text, special);
        mlo_buf_append(out, text, plain);
        text += plain;
        if (!*text)
            return;
        mlo_buf_puts(out, entity[strchr(special, *text++) - special]);
    }
}

/* One number, by its conversion as it stands in the format. */
static void put_number(struct mlo_buf *out, const char *spec, char conversion, int longs, bool size,
                       va_list *args)
{
    char text[400] = "";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* spec is a piece of a literal */
    if (strchr("fFgGeE", conversion))
        snprintf(text, sizeof text, spec, va_arg(*args, double));
    else if (size)
        snprintf(text, sizeof text, spec, va_arg(*args, size_t));
    else if (longs == 2)
        snprintf(text, sizeof text, spec, va_arg(*args, long long));
    else if (longs == 1)
        snprintf(text, sizeof text, spec, va_arg(*args, long));
    else
        snprintf(text, sizeof text, spec, va_arg(*args, int));
#pragma GCC diagnostic pop
    mlo_buf_puts(out, text);
}

static void format(struct mlo_buf *out, const char *fmt, va_list *args)
{
    while (*fmt) {
        size_t plain = strcspn(fmt, "%");
        mlo_buf_append(out, fmt, plain);
        fmt += plain;
        if (!*fmt)
            return;
        size_t length = 1 + strspn(fmt + 1, "-+ #0123456789.");
        int longs = 0;
        bool size = false;
        for (; fmt[length] == 'l' || fmt[length] == 'z'; length++)
            fmt[length] == 'l' ? (void)longs++ : (void)(size = true);
        char conversion = fmt[length], spec[32];
        if (!conversion)
            return;
        length++;
        if (conversion == '%') {
            mlo_buf_putc(out, '%');
        } else if (conversion == 's') {
            mlo_html_escape(out, va_arg(*args, const char *));
        } else if (conversion == 'c') {
            char text[2] = {(char)va_arg(*args, int), '\0'};
            mlo_html_escape(out, text);
        } else if (length < sizeof spec) {
            memcpy(spec, fmt, length);
            spec[length] = '\0';
            put_number(out, spec, conversion, longs, size, args);
        }
        fmt += length;
    }
}

void mlo_html_printf(struct mlo_buf *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    format(out, fmt, &args);
    va_end(args);
}
