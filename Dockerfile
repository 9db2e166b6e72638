# An image with jtx and its pinned requirements.
#
#   docker build -t jtx .                        for CPUs
#   docker build -t jtx --build-arg CHIP=cuda .  for NVIDIA GPUs (then run with --gpus=all)
#   docker build -t jtx --build-arg CHIP=tpu .   for TPUs (then run with --privileged --net=host)
#   docker run --rm -v "$PWD/runs:/jtx/runs" jtx train --config=configs/classify.py:tiny \
#     --workdir=runs/classify
FROM python:3.11-slim
ARG CHIP=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /jtx
# A layer of its own: it is built again only where a requirement changes.
COPY requirements.lock .
RUN python -m pip install -r requirements.lock
COPY . .
RUN python -m pip install --no-deps -e . \
    && if [ -n "$CHIP" ]; then python -m pip install -e ".[$CHIP]"; fi
ENTRYPOINT ["jtx"]
CMD ["--help"]
