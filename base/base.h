/* The public header of base/: what every other room stands on. It depends on libc, OpenSSL
 * (SHA-256), jansson and libyaml, and on no other room. */
#ifndef MLO_BASE_H
#define MLO_BASE_H

#include "base/arena.h"
#include "base/base64.h"
#include "base/cache.h"
#include "base/clock.h"
#include "base/condition.h"
#include "base/embed.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/git_object.h"
#include "base/git_remote.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/process.h"
#include "base/sign.h"
#include "base/sm.h"
#include "base/ssh_sign.h"
#include "base/str.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "base/yaml.h"

#endif
