NODES=${NODES:-@nodes@} NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
set -- "$PYTHON" -m torch.distributed.run --nnodes="$NODES" --node-rank="$NODE_RANK" --nproc-per-node=@gpus_per_node@ --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --shutdown-timeout=@grace_seconds@ @trainer@
