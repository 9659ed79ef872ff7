# syntax=docker/dockerfile:1
# docker build --target light -t training-advisor .             the command line, the app, the server for assistants
# docker build --target train -t training-advisor:train .       the same, which also calibrates and trains
# docker run --rm -v advisor:/data training-advisor plan --gpu any --budget 20
# docker run --rm -v advisor:/data --network host training-advisor app     at http://127.0.0.1:8501 of this machine

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /source
RUN pip install --no-cache-dir build==1.3.0
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY docs/advisor.1 docs/advisor.1
COPY profiles profiles
COPY examples examples
COPY trainer trainer
COPY advisor advisor
RUN python -m build --wheel --outdir /wheels

FROM python:3.12-slim-bookworm AS light
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
RUN useradd --create-home --uid 1000 advisor \
    && install --directory --owner advisor /data \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /tmp/wheels/*.whl)[app,mcp,prometheus]" \
    && advisor --version
ENV ADVISOR_HOME=/data
VOLUME /data
WORKDIR /work
USER 1000
ENTRYPOINT ["advisor"]
CMD ["--help"]

# the wheel of torch for CUDA brings what it needs of CUDA; the driver is the host's: docker run --gpus all
FROM light AS train
USER 0
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /tmp/wheels/*.whl)[train]"
USER 1000
