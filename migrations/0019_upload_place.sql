-- In a bucket, what a piece brought changes the store's own words about an upload: which parts count.

GRANT UPDATE (place) ON upload TO mlopt_server;
