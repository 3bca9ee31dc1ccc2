"""Swift's account, container, object and proxy servers as green threads of one process; see swift.sh, which starts it."""

import eventlet

eventlet.monkey_patch()

import os
import sys

from eventlet import listen, patcher, wrap_ssl, wsgi

USER, SECRET, REGION = "AKIDTEST", "testsecret", "us-east-1"
STORES = ("account", "container", "object")
PIPELINE = ("catch_errors gatekeeper healthcheck cache listing_formats s3api tempauth copy slo dlo "
            "versioned_writes symlink proxy-server")
OWN = {"cache": "paste.filter_factory = __main__:cache_factory", "tempauth": "paste.filter_factory = __main__:auth_factory"}


class Memory(dict):
    """The cache that Swift wants of memcached, as a dictionary: one process needs no more."""

    def __bool__(self):
        return True

    def get(self, key, *_args, **_options):
        return dict.get(self, key)

    def set(self, key, value, *_args, **_options):
        self[key] = value
        return True

    def incr(self, key, delta=1, **_options):
        self[key] = int(dict.get(self, key, 0)) + delta
        return self[key]

    def delete(self, key, *_args, **_options):
        self.pop(key, None)


def cache_factory(_everywhere, **_here):
    memory = Memory()

    def filtered(app):
        def call(env, start_response):
            env["swift.cache"] = memory
            return app(env, start_response)
        return call
    return filtered


def auth_factory(everywhere, **here):
    from swift.common.middleware.tempauth import TempAuth

    def filtered(app):
        auth = TempAuth(app, dict(everywhere, **here))  # its own names of users have a colon, S3's keys have none
        auth.users[USER] = {"key": SECRET, "url": here["account_url"], "groups": [".admin"]}
        return auth
    return filtered


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
        file.write(text)


def prepare(folder, etc):
    """The folders, and what Swift reads once for a whole process."""
    for name in (etc, os.path.join(folder, "disks", "d1")):
        os.makedirs(name, exist_ok=True)
    try:  # Swift keeps what it knows of an object there
        os.setxattr(os.path.join(folder, "disks", "d1"), "user.try", b"x")
    except OSError:
        print("skip no extended attributes in %s" % folder, flush=True)
        sys.exit(77)
    write(etc, "swift.conf", "[swift-hash]\nswift_hash_path_suffix = tests\n"
          "[storage-policy:0]\nname = one\ndefault = yes\n")
    from swift.common import constraints, storage_policy, utils
    utils.SWIFT_CONF_FILE = os.path.join(etc, "swift.conf")
    utils.validate_hash_conf()
    storage_policy.reload_storage_policies()
    constraints.reload_constraints()


def make_rings(etc, sockets):
    from swift.common.ring import RingBuilder
    for kind in STORES:
        port = sockets[kind].getsockname()[1]
        builder = RingBuilder(4, 1, 1)  # 16 partitions, one copy
        builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "d1", "meta": "",
                         "ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port})
        builder.rebalance()
        builder.get_ring().save(os.path.join(etc, kind + ".ring.gz"))


def make_configs(folder, etc, port):
    common = ("[DEFAULT]\nswift_dir = %s\ndevices = %s/disks\nmount_check = false\nworkers = 0\nlog_level = ERROR\n"
              "log_address = %s/no-syslog\nfallocate_reserve = 0\n" % (etc, folder, folder))
    for kind in STORES:
        write(etc, kind + ".conf", "%s[pipeline:main]\npipeline = %s-server\n[app:%s-server]\nuse = egg:swift#%s\n"
              % (common, kind, kind, kind))
    options = {
        "s3api": "location = %s\nauth_pipeline_check = false\nstorage_domain = localhost\n"
                 "dns_compliant_bucket_names = true\nmax_upload_part_num = 10000\nmax_bucket_listing = 100\n"
                 "max_multi_upload_listing = 100\nmax_parts_listing = 100\n" % REGION,
        "tempauth": "account_url = http://127.0.0.1:%d/v1/AUTH_test\n" % port,
        "slo": "max_manifest_segments = 10000\n",
        "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true\n",
    }
    text = common + "[pipeline:main]\npipeline = %s\n" % PIPELINE
    text += "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\nallow_account_management = true\n"
    for name in PIPELINE.split()[:-1]:
        use = OWN.get(name, "use = egg:swift#" + name)
        text += "[filter:%s]\n%s\n%s" % (name, use, options.get(name, ""))
    write(etc, "proxy.conf", text)


def end_with_the_pipe():
    """A thread of the system's own: reading would stop the green ones."""
    def wait():
        while os.read(0, 4096):
            pass
        os._exit(0)
    patcher.original("threading").Thread(target=wait, daemon=True).start()


def main():
    folder = os.path.abspath(sys.argv[1])
    etc = os.path.join(folder, "etc")
    end_with_the_pipe()
    prepare(folder, etc)
    sockets = {kind: listen(("127.0.0.1", 0)) for kind in STORES + ("proxy", "tls")}
    make_rings(etc, sockets)
    make_configs(folder, etc, sockets["proxy"].getsockname()[1])
    from swift.common.utils import NullLogger
    from swift.common.wsgi import SwiftHttpProtocol, loadapp
    apps = {kind: loadapp(os.path.join(etc, kind + ".conf")) for kind in STORES + ("proxy",)}
    apps["tls"] = apps["proxy"]
    ports = {kind: sockets[kind].getsockname()[1] for kind in ("proxy", "tls")}
    sockets["tls"] = wrap_ssl(sockets["tls"], certfile=os.path.join(folder, "tls.crt"),
                              keyfile=os.path.join(folder, "tls.key"), server_side=True)
    threads = [eventlet.spawn(wsgi.server, sockets[kind], app, NullLogger(), protocol=SwiftHttpProtocol,
                              capitalize_response_headers=False, log_output=False) for kind, app in apps.items()]
    print("ready %d %d" % (ports["proxy"], ports["tls"]), flush=True)
    threads[0].wait()


if __name__ == "__main__":
    main()
