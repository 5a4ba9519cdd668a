# The classroom: JupyterLab with the workbook, the five stories and all that they need. Everything comes from package
# registries, in the versions that were tested; nothing else is downloaded.
#
#   docker build -t ncclkit . && docker run --rm -p 127.0.0.1:8888:8888 --shm-size 1g ncclkit
#
# Story 3 makes network namespaces: add `--cap-add SYS_ADMIN --cap-add NET_ADMIN`, or it shows its recordings. With GPUs add
# `--gpus all`; where pip's index offers torch for CPUs by default, name one for CUDA by `--build-arg INDEX=URL`.
FROM python:3.11-slim-bookworm
ARG INDEX=""
RUN apt-get update && apt-get install -y --no-install-recommends iproute2 iputils-ping make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home student
WORKDIR /home/student/ncclkit
COPY --chown=student pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=student ncclkit ncclkit
COPY --chown=student notebooks notebooks
COPY --chown=student docs docs
# pip wants a hash of everything where a constraint has one, and an editable installation has none
RUN sed -e '/^ /d' -e 's/ \\$//' constraints.txt > /tmp/pinned.txt \
    && python -m pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} -c /tmp/pinned.txt \
    -e ".[fast]" lightning-fabric torchdata
USER student
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--notebook-dir=/home/student/ncclkit/notebooks"]
